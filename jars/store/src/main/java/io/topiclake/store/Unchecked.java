package io.topiclake.store;

import java.io.IOException;

/** Lets Scala's callers, which know no checked exceptions, see them as they are. */
final class Unchecked {
  private Unchecked() {}

  interface Call<T> {
    T run() throws IOException;
  }

  static <T> T of(Call<T> call) {
    try {
      return call.run();
    } catch (IOException error) {
      throw Unchecked.<RuntimeException>thrown(error);
    }
  }

  @SuppressWarnings("unchecked")
  static <E extends Throwable> E thrown(Throwable error) throws E {
    throw (E) error;
  }
}
