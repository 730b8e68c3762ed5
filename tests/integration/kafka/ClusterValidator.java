import java.io.IOException;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerExtensionsValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler;

/** Validates tokens as Kafka does, and refuses clients of another logical cluster than lkc-1, as Confluent Cloud does. */
public final class ClusterValidator extends OAuthBearerValidatorCallbackHandler {
  private static final String CLUSTER = "logicalCluster";

  @Override
  public void handle(Callback[] callbacks) throws IOException, UnsupportedCallbackException {
    for (Callback callback : callbacks) {
      if (callback instanceof OAuthBearerExtensionsValidatorCallback extensions
          && !extensions.inputExtensions().map().getOrDefault(CLUSTER, "lkc-1").equals("lkc-1")) {
        extensions.error(CLUSTER, "another cluster");
      } else {
        super.handle(new Callback[] {callback});
      }
    }
  }
}
