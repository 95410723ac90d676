package io.afterglow.cassandra;

import java.io.IOException;

/** A store whose changes may fail, as after a bug in the engine. */
final class BreakingStore extends FlashStore {
  boolean broken;

  BreakingStore(String config) throws IOException {
    super(config);
  }

  private void change() {
    if (broken) {
      throw new FlashException("broken");
    }
  }

  @Override
  boolean put(byte[] key, Value value, int group) {
    change();
    return super.put(key, value, group);
  }

  @Override
  void remove(byte[] key) {
    change();
    super.remove(key);
  }

  @Override
  public void removeGroup(int group) {
    change();
    super.removeGroup(group);
  }

  @Override
  void clear() {
    change();
    super.clear();
  }
}
