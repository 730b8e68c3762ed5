package io.topiclake.console;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import org.apache.avro.Schema;

/**
 * The schemas of a registry with Confluent's REST API, each asked for once.
 *
 * <p>Properties: {@code schema.registry.url}, {@code basic.auth.user.info} ({@code user:password}) and
 * {@code schema.registry.ca.file} (PEM). {@code schema.registry.header.<name>} is a header of each request.
 * {@code schema.registry.certificate} is the client's chain, {@code schema.registry.key} its PKCS#8 key, as PEM.
 * {@code schema.registry.retry.seconds} limits how long a registry is asked again that does not answer, or
 * answers 429 or 5xx.
 */
final class Schemas {
  private static final Duration TIMEOUT = Duration.ofSeconds(10);
  private static final long PAUSE_MILLIS = 1000;
  private static final String HEADER = "schema.registry.header.";

  private final Map<String, Schema> known = new HashMap<>();
  private final ObjectMapper mapper = new ObjectMapper();
  private final String url;
  private final String login;
  private final Map<String, String> headers = new HashMap<>();
  private final String caFile;
  private final String certificate;
  private final String key;
  private final Duration patience;
  private HttpClient client;

  Schemas(Map<String, ?> configs) {
    url = text(configs, "schema.registry.url").replaceAll("/+$", "");
    login = text(configs, "basic.auth.user.info");
    for (String name : configs.keySet()) {
      if (name.startsWith(HEADER)) {
        headers.put(name.substring(HEADER.length()), text(configs, name));
      }
    }
    caFile = text(configs, "schema.registry.ca.file");
    certificate = text(configs, "schema.registry.certificate");
    key = text(configs, "schema.registry.key");
    String seconds = text(configs, "schema.registry.retry.seconds");
    patience = Duration.ofMillis(seconds.isEmpty() ? 0 : (long) (Double.parseDouble(seconds) * 1000));
  }

  Schema byId(int id) throws IOException {
    return schema("/schemas/ids/" + id);
  }

  Schema byGuid(UUID guid) throws IOException {
    return schema("/schemas/guids/" + guid);
  }

  private Schema schema(String path) throws IOException {
    Schema found = known.get(path);
    if (found == null) {
      JsonNode answer = ask(path);
      String type = answer.path("schemaType").asText("AVRO");
      if (!type.equals("AVRO")) {
        throw new IOException(url + path + " is a schema of type " + type + ", not AVRO");
      }
      Schema.Parser parser = new Schema.Parser();
      parseReferences(answer, parser, new HashMap<>());
      found = parser.parse(answer.path("schema").asText());
      known.put(path, found);
    }
    return found;
  }

  /** Parse what a schema refers to before it, and each of them once. */
  private void parseReferences(JsonNode answer, Schema.Parser parser, Map<String, Boolean> parsed)
      throws IOException {
    for (JsonNode reference : answer.path("references")) {
      String subject = URLEncoder.encode(reference.path("subject").asText(), StandardCharsets.UTF_8);
      String path = "/subjects/" + subject.replace("+", "%20") + "/versions/" + reference.path("version").asInt();
      if (parsed.put(path, true) == null) {
        JsonNode referred = ask(path);
        parseReferences(referred, parser, parsed);
        parser.parse(referred.path("schema").asText());
      }
    }
  }

  private JsonNode ask(String path) throws IOException {
    long deadline = System.nanoTime() + patience.toNanos();
    String problem = null;
    while (true) {
      String before = problem;
      try {
        HttpResponse<String> answer = client().send(request(path), BodyHandlers.ofString());
        if (answer.statusCode() == 200) {
          return mapper.readTree(answer.body());
        }
        problem = "the schema registry answered " + answer.statusCode() + " to " + url + path;
        if (answer.statusCode() != 429 && answer.statusCode() < 500) {
          throw new Refused(problem);
        }
      } catch (Refused refused) {
        throw refused;
      } catch (IOException error) {
        problem = "the schema registry does not answer at " + url + path + ": " + error;
      } catch (InterruptedException stopped) {
        Thread.currentThread().interrupt();
        throw new Refused("stopped while it asked for " + url + path);
      }
      if (System.nanoTime() > deadline) {
        throw new Refused(problem);
      }
      if (before == null) {
        System.err.println(problem + "; it is asked again for " + patience.toSeconds() + " s");
      }
      pause();
    }
  }

  private HttpRequest request(String path) {
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + path)).timeout(TIMEOUT);
    request.header("Accept", "application/vnd.schemaregistry.v1+json, application/json");
    headers.forEach(request::header);
    if (!login.isEmpty()) {
      byte[] credentials = login.getBytes(StandardCharsets.UTF_8);
      request.header("Authorization", "Basic " + Base64.getEncoder().encodeToString(credentials));
    }
    return request.build();
  }

  private HttpClient client() throws IOException {
    if (client == null) {
      HttpClient.Builder made = HttpClient.newBuilder().connectTimeout(TIMEOUT).version(HttpClient.Version.HTTP_1_1);
      if (!caFile.isEmpty() || !key.isEmpty()) {
        made.sslContext(tls());
      }
      client = made.build();
    }
    return client;
  }

  private SSLContext tls() throws IOException {
    try {
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(
          key.isEmpty() ? null : keyManagers(), caFile.isEmpty() ? null : trusting(Path.of(caFile)), null);
      return context;
    } catch (GeneralSecurityException error) {
      throw new Refused("the certificates for the schema registry cannot be used: " + error.getMessage());
    }
  }

  private KeyManager[] keyManagers() throws IOException, GeneralSecurityException {
    InputStream pem = new ByteArrayInputStream(certificate.getBytes(StandardCharsets.US_ASCII));
    Certificate[] chain =
        CertificateFactory.getInstance("X.509").generateCertificates(pem).toArray(new Certificate[0]);
    byte[] encoded = Base64.getMimeDecoder().decode(key.replaceAll("-----[A-Z ]+-----", ""));
    PrivateKey secret =
        KeyFactory.getInstance(chain[0].getPublicKey().getAlgorithm())
            .generatePrivate(new PKCS8EncodedKeySpec(encoded));
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    store.setKeyEntry("client", secret, new char[0], chain);
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(store, new char[0]);
    return keys.getKeyManagers();
  }

  private static TrustManager[] trusting(Path caFile) throws IOException, GeneralSecurityException {
    try (InputStream pem = Files.newInputStream(caFile)) {
      KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
      store.load(null, null);
      for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
        store.setCertificateEntry(String.valueOf(store.size()), one);
      }
      TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      trust.init(store);
      return trust.getTrustManagers();
    }
  }

  private static void pause() throws IOException {
    try {
      Thread.sleep(PAUSE_MILLIS);
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
      throw new Refused("stopped while it waited for the schema registry");
    }
  }

  private static String text(Map<String, ?> configs, String name) {
    Object given = configs.get(name);
    return given == null ? "" : given.toString();
  }

  /** An error that a repeated request does not fix. */
  private static final class Refused extends IOException {
    private static final long serialVersionUID = 1L;

    Refused(String message) {
      super(message);
    }
  }
}
