package io.afterglow.cassandra;

/** An option is wrong; the message says which, why, and what would be right. */
final class ConfigException extends Exception {
  private static final long serialVersionUID = 1;

  ConfigException(String message) {
    super(message);
  }
}
