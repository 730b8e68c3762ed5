package io.topiclake.console;

/** A record that cannot be shown. Without a stack trace: the console consumer prints the exception as it is. */
public final class UndecodableException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  UndecodableException(String message) {
    super(message, null, false, false);
  }
}
