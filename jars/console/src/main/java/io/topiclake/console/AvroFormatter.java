package io.topiclake.console;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.io.JsonEncoder;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.MessageFormatter;
import org.apache.kafka.common.header.Header;

/**
 * Prints records whose values (and keys, with {@code key.avro=true}) are Confluent-framed Avro, as JSON: a
 * {@code --formatter} of Kafka's console consumer. Everything is decoded by Avro's own classes.
 *
 * <p>Properties have the names that {@code kafka-avro-console-consumer} knows: {@code print.timestamp},
 * {@code print.partition}, {@code print.offset}, {@code print.headers}, {@code print.key},
 * {@code print.schema.ids}, {@code key.separator}, {@code headers.separator}, {@code line.separator},
 * {@code schema.id.separator}, {@code null.literal}. {@link Schemas} reads {@code schema.registry.url} and its
 * login. The schema is named by five bytes before the value, or by the record header
 * {@code __value_schema_id} with an id or a GUID.
 */
public final class AvroFormatter implements MessageFormatter {
  private static final int PREFIX = 5;
  private static final int GUID_PREFIX = 17;

  private Map<String, ?> configs = Map.of();
  private Schemas schemas;
  private boolean avroKeys;
  private String separator;

  @Override
  public void configure(Map<String, ?> given) {
    configs = given;
    schemas = new Schemas(given);
    avroKeys = is("key.avro");
    separator = text("key.separator", "\t");
  }

  /** @throws UndecodableException a value or key is no Avro, or nobody knows its schema */
  @Override
  public void writeTo(ConsumerRecord<byte[], byte[]> record, PrintStream output) {
    // Whole, before anything of it is printed: a line that ends in the middle would be taken for a record.
    String line = String.join(separator, fields(record)) + text("line.separator", "\n");
    byte[] bytes = line.getBytes(StandardCharsets.UTF_8);
    output.write(bytes, 0, bytes.length);
  }

  private List<String> fields(ConsumerRecord<byte[], byte[]> record) {
    List<String> fields = new ArrayList<>();
    if (is("print.timestamp")) {
      fields.add(record.timestampType() + ":" + record.timestamp());
    }
    if (is("print.partition")) {
      fields.add("Partition:" + record.partition());
    }
    if (is("print.offset")) {
      fields.add("Offset:" + record.offset());
    }
    if (is("print.headers")) {
      fields.add(headers(record));
    }
    if (is("print.key")) {
      fields.add(avroKeys ? json(record, "key", record.key()) : utf8(record.key()));
    }
    fields.add(json(record, "value", record.value()));
    return fields;
  }

  private String headers(ConsumerRecord<byte[], byte[]> record) {
    List<String> shown = new ArrayList<>();
    for (Header header : record.headers()) {
      shown.add(header.key() + ":" + utf8(header.value()));
    }
    return shown.isEmpty() ? "NO_HEADERS" : String.join(text("headers.separator", ","), shown);
  }

  private String json(ConsumerRecord<byte[], byte[]> record, String part, byte[] bytes) {
    if (bytes == null) {
      return text("null.literal", "null");
    }
    try {
      Header named = record.headers().lastHeader("__" + part + "_schema_id");
      byte[] name = named == null ? Arrays.copyOf(bytes, Math.min(bytes.length, PREFIX)) : named.value();
      int begin = named == null ? PREFIX : 0;
      Schema schema = schema(name, named != null);
      String json = json(schema, bytes, begin);
      return is("print.schema.ids") ? json + text("schema.id.separator", "\t") + shown(name) : json;
    } catch (IOException | RuntimeException error) {
      // Avro's decoder answers wrong bytes with many an exception.
      String place =
          "%s of topic %s, partition %d, offset %d"
              .formatted(part, record.topic(), record.partition(), record.offset());
      throw new UndecodableException(place + " is not shown: " + cause(error) + "; try: --skip-message-on-error");
    }
  }

  private static String cause(Exception error) {
    if (error instanceof EOFException) {
      return "its bytes end before what its schema describes does";
    }
    return error instanceof IOException && error.getMessage() != null ? error.getMessage() : error.toString();
  }

  private Schema schema(byte[] name, boolean inHeader) throws IOException {
    if (name.length == PREFIX && name[0] == 0) {
      return schemas.byId(ByteBuffer.wrap(name).getInt(1));
    }
    if (inHeader && name.length == GUID_PREFIX && name[0] == 1) {
      return schemas.byGuid(guid(name));
    }
    throw new IOException(
        inHeader
            ? "its header names neither an id nor a GUID"
            : name.length < PREFIX
                ? name.length + " bytes are less than the 5 in front of Confluent's Avro"
                : "byte 0 is 0x%02X, not 0x00, so this is not Confluent's Avro".formatted(name[0]));
  }

  private static UUID guid(byte[] name) {
    ByteBuffer bytes = ByteBuffer.wrap(name, 1, 16);
    return new UUID(bytes.getLong(), bytes.getLong());
  }

  private static String shown(byte[] name) {
    return name.length == PREFIX ? String.valueOf(ByteBuffer.wrap(name).getInt(1)) : guid(name).toString();
  }

  private static String json(Schema schema, byte[] bytes, int begin) throws IOException {
    BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(bytes, begin, bytes.length - begin, null);
    Object value = new GenericDatumReader<>(schema).read(null, decoder);
    if (!decoder.isEnd()) {
      throw new IOException("bytes remain after the record of schema " + schema.getFullName());
    }
    ByteArrayOutputStream written = new ByteArrayOutputStream();
    JsonEncoder encoder = EncoderFactory.get().jsonEncoder(schema, written);
    new GenericDatumWriter<>(schema).write(value, encoder);
    encoder.flush();
    return written.toString(StandardCharsets.UTF_8);
  }

  private String utf8(byte[] bytes) {
    return bytes == null ? text("null.literal", "null") : new String(bytes, StandardCharsets.UTF_8);
  }

  private boolean is(String name) {
    return text(name, "false").trim().equalsIgnoreCase("true");
  }

  private String text(String name, String otherwise) {
    Object given = configs.get(name);
    return given == null ? otherwise : given.toString();
  }
}
