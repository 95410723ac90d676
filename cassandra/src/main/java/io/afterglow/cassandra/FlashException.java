package io.afterglow.cassandra;

/** The engine failed in a way that it must not be used any more. */
final class FlashException extends RuntimeException {
  private static final long serialVersionUID = 1;

  FlashException(String message) {
    super(message);
  }
}
