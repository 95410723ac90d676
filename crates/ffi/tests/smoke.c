// Uses every function of afterglow.h; ends with "all good", or with the line that did not hold.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "afterglow.h"

#define CHECK(what)                                                                            \
  do {                                                                                         \
    if (!(what)) {                                                                             \
      printf("%s:%d: %s does not hold; last message: %s\n", __FILE__, __LINE__, #what, aglow_error()); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

#define THREADS 4
#define KEYS 500

static const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

static aglow_cache *open_cache(const char *dir, aglow_namespace **rows) {
  char flash[4096];
  snprintf(flash, sizeof flash, "%s/flash", dir);
  aglow_device device = {.path = flash, .size = 64 << 20};
  aglow_config config = {.struct_size = sizeof config, .data_dir = dir, .devices = &device, .device_count = 1,
                         .memory = 16 << 20, .journal_size = 1 << 20};
  aglow_cache *cache = NULL;
  CHECK(aglow_cache_open(&config, &cache) == AGLOW_OK);
  CHECK(aglow_namespace_open(cache, "rows", AGLOW_SURVIVES_CLEAN_STOP_ONLY, rows) == AGLOW_OK);
  return cache;
}

struct work {
  aglow_namespace *rows;
  int thread;
};

static void *put_many(void *argument) {
  struct work *work = argument;
  for (int n = 0; n < KEYS; n++) {
    char key[32], value[64], found[64];
    int key_len = snprintf(key, sizeof key, "thread %d key %d", work->thread, n);
    int value_len = snprintf(value, sizeof value, "value %d of %d", n, work->thread);
    aglow_hit hit;
    CHECK(aglow_put(work->rows, bytes(key), key_len, bytes(value), value_len, NULL, NULL) == AGLOW_OK);
    CHECK(aglow_get(work->rows, bytes(key), key_len, (uint8_t *)found, sizeof found, &hit) == AGLOW_OK);
    CHECK(hit.len == (size_t)value_len && memcmp(found, value, value_len) == 0);
  }
  return NULL;
}

static size_t count_keys(aglow_namespace *rows) {
  aglow_keys *keys = NULL;
  CHECK(aglow_keys_open(rows, &keys) == AGLOW_OK);
  size_t count = 0, len = 0;
  uint8_t key[64];
  aglow_status status = aglow_keys_next(keys, key, 0, &len);
  if (status != AGLOW_END) {
    CHECK(status == AGLOW_E_TOO_SMALL && len > 0);
  }
  while ((status = aglow_keys_next(keys, key, sizeof key, &len)) == AGLOW_OK) {
    count++;
  }
  CHECK(status == AGLOW_END);
  CHECK(aglow_keys_free(keys) == AGLOW_OK);
  return count;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(aglow_abi() == AGLOW_ABI);
  aglow_namespace *rows = NULL;
  aglow_cache *cache = open_cache(argv[1], &rows);

  // One object.
  uint8_t buffer[64];
  uint64_t version = 0, second = 0;
  aglow_hit hit;
  aglow_put_options in_group = {.expiry = 0, .group = 7};
  CHECK(aglow_get(rows, bytes("k"), 1, buffer, sizeof buffer, &hit) == AGLOW_MISS);
  CHECK(aglow_put(rows, bytes("k"), 1, bytes("hello"), 5, &in_group, &version) == AGLOW_OK && version > 0);
  CHECK(aglow_get(rows, bytes("k"), 1, buffer, 4, &hit) == AGLOW_E_TOO_SMALL && hit.len == 5);
  CHECK(aglow_get(rows, bytes("k"), 1, buffer, 5, &hit) == AGLOW_OK && memcmp(buffer, "hello", 5) == 0);
  CHECK(hit.version == version && hit.group == 7 && hit.expiry == 0);

  // Compare and put.
  CHECK(aglow_put_if(rows, bytes("k"), 1, bytes("no"), 2, NULL, NULL, NULL) == AGLOW_REFUSED);
  CHECK(strstr(aglow_error(), "nothing was changed") != NULL);
  CHECK(aglow_put_if(rows, bytes("k"), 1, bytes("yes"), 3, &in_group, &version, &second) == AGLOW_OK);
  CHECK(second > version);

  // Removals.
  CHECK(aglow_remove(rows, bytes("k"), 1) == AGLOW_OK);
  CHECK(aglow_get(rows, bytes("k"), 1, buffer, sizeof buffer, NULL) == AGLOW_MISS);
  CHECK(aglow_put(rows, bytes("k"), 1, bytes("again"), 5, &in_group, NULL) == AGLOW_OK);
  CHECK(aglow_remove_group(rows, 7) == AGLOW_OK);
  CHECK(aglow_get(rows, bytes("k"), 1, buffer, sizeof buffer, NULL) == AGLOW_MISS);
  CHECK(aglow_put(rows, bytes("k"), 1, bytes("again"), 5, NULL, NULL) == AGLOW_OK);
  CHECK(aglow_clear(rows) == AGLOW_OK);
  CHECK(aglow_get(rows, bytes("k"), 1, buffer, sizeof buffer, NULL) == AGLOW_MISS);
  CHECK(count_keys(rows) == 0);

  // Many threads.
  pthread_t threads[THREADS];
  struct work work[THREADS];
  for (int n = 0; n < THREADS; n++) {
    work[n] = (struct work){rows, n};
    CHECK(pthread_create(&threads[n], NULL, put_many, &work[n]) == 0);
  }
  for (int n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
  }
  CHECK(count_keys(rows) == THREADS * KEYS);

  // The counters.
  size_t len = 0;
  CHECK(aglow_stats(cache, NULL, 0, &len) == AGLOW_E_TOO_SMALL && len > 0);
  char *stats = calloc(1, len + 64);
  CHECK(aglow_stats(cache, (uint8_t *)stats, len + 63, &len) == AGLOW_OK);
  CHECK(strstr(stats, "rows.hits.dram ") != NULL && strstr(stats, "rows.kills 2\n") != NULL);
  free(stats);

  // Mistakes are told, not died of.
  CHECK(aglow_remove_group(rows, 0) == AGLOW_E_ARGUMENT);
  CHECK(aglow_get(NULL, bytes("k"), 1, buffer, sizeof buffer, NULL) == AGLOW_E_ARGUMENT);
  CHECK(aglow_put(rows, NULL, 3, bytes("x"), 1, NULL, NULL) == AGLOW_E_ARGUMENT);
  aglow_config wrong = {.struct_size = 8};
  aglow_cache *none = NULL;
  CHECK(aglow_cache_open(&wrong, &none) == AGLOW_E_ARGUMENT && none == NULL);
  char line[256];
  aglow_status logged = aglow_log_next((uint8_t *)line, sizeof line, &len);
  CHECK(logged == AGLOW_OK || logged == AGLOW_MISS);

  // A clean stop, and everything is there again.
  CHECK(aglow_cache_close(cache) == AGLOW_OK);
  CHECK(aglow_put(rows, bytes("k"), 1, bytes("late"), 4, NULL, NULL) == AGLOW_REFUSED);
  CHECK(aglow_namespace_free(rows) == AGLOW_OK);
  CHECK(aglow_cache_free(cache) == AGLOW_OK);
  cache = open_cache(argv[1], &rows);
  while (aglow_get(rows, bytes("thread 3 key 499"), 16, buffer, sizeof buffer, &hit) != AGLOW_OK) {
  }
  CHECK(hit.len == 14 && memcmp(buffer, "value 499 of 3", 14) == 0);
  CHECK(aglow_namespace_free(rows) == AGLOW_OK && aglow_cache_free(cache) == AGLOW_OK);
  CHECK(aglow_cache_free(NULL) == AGLOW_OK && aglow_namespace_free(NULL) == AGLOW_OK);
  printf("all good\n");
  return 0;
}
