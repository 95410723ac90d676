package io.afterglow.cassandra;

import java.util.Collections;
import java.util.Iterator;
import org.apache.cassandra.cache.ICache;
import org.apache.cassandra.cache.IRowCacheEntry;
import org.apache.cassandra.cache.RowCacheKey;

/**
 * What a node runs with when there can be no cache: nothing is there, and with a capacity of 0
 * nobody asks.
 */
final class NoCache implements ICache<RowCacheKey, IRowCacheEntry> {
  @Override
  public long capacity() {
    return 0;
  }

  @Override
  public void setCapacity(long capacity) {}

  @Override
  public int size() {
    return 0;
  }

  @Override
  public long weightedSize() {
    return 0;
  }

  @Override
  public void put(RowCacheKey key, IRowCacheEntry value) {}

  @Override
  public boolean putIfAbsent(RowCacheKey key, IRowCacheEntry value) {
    return false;
  }

  @Override
  public boolean replace(RowCacheKey key, IRowCacheEntry old, IRowCacheEntry value) {
    return false;
  }

  @Override
  public IRowCacheEntry get(RowCacheKey key) {
    return null;
  }

  @Override
  public void remove(RowCacheKey key) {}

  @Override
  public void clear() {}

  @Override
  public Iterator<RowCacheKey> keyIterator() {
    return Collections.emptyIterator();
  }

  @Override
  public Iterator<RowCacheKey> hotKeyIterator(int n) {
    return Collections.emptyIterator();
  }

  @Override
  public boolean containsKey(RowCacheKey key) {
    return false;
  }
}
