package io.topiclake.store;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** RenewableFiles for Hadoop's other interface, by which Spark writes a checkpoint in Azure. */
public class RenewableContext extends DelegateToFileSystem {
  public RenewableContext(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new RenewableFiles(), conf, uri.getScheme(), false);
  }

  @Override
  public int getUriDefaultPort() {
    return -1;
  }
}
