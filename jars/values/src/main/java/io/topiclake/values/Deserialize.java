package io.topiclake.values;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF4;

/**
 * A Kafka {@code Deserializer} class as a function of Spark SQL: (class, its configuration as JSON, topic, value) to
 * (the value as JSON, what went wrong).
 *
 * <p>An exception of the class is returned next to the value. Other errors fail the query: a class that does not exist or is
 * no Deserializer, and a service that does not answer the class.
 */
public final class Deserialize implements UDF4<String, String, String, byte[], Row> {
  private static final long serialVersionUID = 1L;
  private static final String INTERFACE = "org.apache.kafka.common.serialization.Deserializer";
  private static final int MOST_CHARACTERS = 1000;
  // Spark brings Jackson, and its java.time; objects of any class are written by their properties.
  private static final ObjectMapper JSON =
      JsonMapper.builder().findAndAddModules().disable(SerializationFeature.WRITE_DATES_AS_TIMESTAMPS).build();
  // Kafka promises nothing about threads: each has its own.
  private static final ThreadLocal<Map<String, Object>> MADE = ThreadLocal.withInitial(HashMap::new);

  @Override
  public Row call(String className, String configuration, String topic, byte[] value) throws Exception {
    Object deserializer = made(className, configuration);
    if (value == null) {
      return RowFactory.create(null, null);
    }
    Object found;
    try {
      found = method(deserializer).invoke(deserializer, topic, value);
    } catch (InvocationTargetException raised) {
      return refused(className, raised.getCause());
    }
    if (found == null) {
      return RowFactory.create(null, "the deserializer returns null");
    }
    try {
      return RowFactory.create(json(found), null);
    } catch (IOException error) {
      return RowFactory.create(null, cut("no JSON can be made of a " + found.getClass().getName() + ": " + error));
    }
  }

  private static Row refused(String className, Throwable raised) throws Exception {
    for (Throwable cause = raised; cause != null; cause = cause.getCause()) {
      if (cause instanceof Error || isOutage(cause.getClass())) {
        throw new IllegalStateException("TOPICLAKE_DESERIALIZER " + className + " fails now: " + raised, raised);
      }
    }
    return RowFactory.create(null, cut(raised.getClass().getSimpleName() + ": " + raised.getMessage()));
  }

  /**
   * A connection, Kafka's own sign for what may be right the next time, or a registry's refusal. Not every IOException: a
   * value that is cut off is an EOFException, and one that is no JSON Jackson's.
   */
  private static boolean isOutage(Class<?> kind) {
    if (kind == null) {
      return false;
    }
    String name = kind.getName();
    return name.startsWith("java.net.")
        || name.startsWith("javax.net.")
        || name.equals("org.apache.kafka.common.errors.RetriableException")
        || name.equals("io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException")
        || isOutage(kind.getSuperclass());
  }

  private static String json(Object found) throws IOException {
    if (found instanceof String text) {
      return text;
    }
    if (found instanceof byte[] bytes) {
      return new String(bytes, StandardCharsets.UTF_8);
    }
    // Avro's own text of a record is JSON; its properties would be its schema as well.
    return isAvro(found.getClass()) ? found.toString() : JSON.writeValueAsString(found);
  }

  private static boolean isAvro(Class<?> kind) {
    return implementsInterface(kind, "org.apache.avro.generic.GenericContainer");
  }

  private static Object made(String className, String configuration) throws Exception {
    String key = className + " " + configuration;
    Object made = MADE.get().get(key);
    if (made == null) {
      made = make(className, configuration);
      MADE.get().put(key, made);
    }
    return made;
  }

  private static Object make(String className, String configuration) throws Exception {
    try {
      // Nothing of the class runs before it is known to be a Deserializer.
      Class<?> kind = Class.forName(className, false, Thread.currentThread().getContextClassLoader());
      if (!implementsInterface(kind, INTERFACE)) {
        throw new IllegalStateException("it is no " + INTERFACE);
      }
      Object made = kind.getDeclaredConstructor().newInstance();
      Map<?, ?> given = JSON.readValue(configuration, Map.class);
      kind.getMethod("configure", Map.class, boolean.class).invoke(made, given, false);
      return made;
    } catch (ReflectiveOperationException | LinkageError | IllegalStateException error) {
      Throwable why = error instanceof InvocationTargetException raised ? raised.getCause() : error;
      throw new IllegalStateException("TOPICLAKE_DESERIALIZER " + className + " cannot be used: " + why, error);
    }
  }

  private static boolean implementsInterface(Class<?> kind, String wanted) {
    if (kind == null) {
      return false;
    }
    if (kind.getName().equals(wanted)) {
      return true;
    }
    for (Class<?> one : kind.getInterfaces()) {
      if (implementsInterface(one, wanted)) {
        return true;
      }
    }
    return implementsInterface(kind.getSuperclass(), wanted);
  }

  private static Method method(Object deserializer) throws NoSuchMethodException {
    Method found = deserializer.getClass().getMethod("deserialize", String.class, byte[].class);
    // The class may be a private one of a public interface.
    found.setAccessible(true);
    return found;
  }

  private static String cut(String text) {
    return text.length() <= MOST_CHARACTERS ? text : text.substring(0, MOST_CHARACTERS);
  }
}
