package io.topiclake.store.cache;

import java.util.function.LongSupplier;

/** The age of what a process remembers of a store. */
final class Age {
  /** Nanoseconds since some moment; tests stop this clock. */
  private static volatile LongSupplier clock = System::nanoTime;

  private Age() {}

  static long now() {
    return clock.getAsLong();
  }

  static boolean isAtMost(long nanos, long since) {
    return now() - since <= nanos;
  }
}
