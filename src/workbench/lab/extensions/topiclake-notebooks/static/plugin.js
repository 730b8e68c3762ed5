/*
 * JupyterLab's support of notebooks in Databricks source format: a double click opens them as notebooks, and a
 * stream's output continues to change after the page was loaded again.
 *
 * JupyterLab chooses the viewer of a file by the file's name, and the names of these notebooks end as those of
 * modules do. The server distinguishes them (workbench.lab.contents). So this extension reads each answer of the
 * server before JupyterLab asks for a file's default viewer.
 *
 * Written by hand in the form in which JupyterLab loads extensions. It needs only the objects that JupyterLab
 * passes to `activate`, so there is nothing to build.
 */
(() => {
  "use strict";

  const notebooks = new Set();

  function remember(model) {
    if (model.type === "directory") {
      (model.content ?? []).forEach(remember);
    } else if (model.type === "notebook") {
      notebooks.add(model.path);
    } else {
      notebooks.delete(model.path);
    }
  }

  /*
   * An output that is updated by its display id. JupyterLab forgets the id when the page is loaded again, so
   * the output carries it in its metadata (workbench.display.surfaces). A cell that was executed in this page
   * has a future, and JupyterLab updates its outputs.
   */
  function updateOutputs(notebook, message) {
    const id = message.content.transient?.display_id;
    if (message.header.msg_type !== "update_display_data" || !id) {
      return;
    }
    for (const cell of notebook.widgets) {
      const outputs = cell.outputArea?.future ? null : cell.outputArea?.model;
      for (let index = 0; index < (outputs?.length ?? 0); index++) {
        if (outputs.get(index).metadata.display_id === id) {
          outputs.set(index, { ...message.content, output_type: "display_data" });
        }
      }
    }
  }

  const liveOutputs = {
    createNew(panel, context) {
      const update = (_, message) => updateOutputs(panel.content, message);
      context.sessionContext.iopubMessage.connect(update);
      return {
        isDisposed: false,
        dispose() {
          this.isDisposed = true;
          context.sessionContext.iopubMessage.disconnect(update);
        },
      };
    },
  };

  function activate(app) {
    const contents = app.serviceManager.contents;
    const registry = app.docRegistry;

    registry.addWidgetExtension("Notebook", liveOutputs);

    const get = contents.get.bind(contents);
    contents.get = async (path, options) => {
      const model = await get(path, options);
      // An editor asks for the file's text, and the answer says that it is a file.
      if (!options?.type) {
        remember(model);
      }
      return model;
    };

    const preferred = registry.preferredWidgetFactories.bind(registry);
    registry.preferredWidgetFactories = (path) => {
      const found = preferred(path);
      const notebook = registry.getWidgetFactory("Notebook");
      if (!notebook || !notebooks.has(path)) {
        return found;
      }
      return [notebook, ...found.filter((factory) => factory !== notebook)];
    };
  }

  const plugin = {
    id: "topiclake-notebooks:plugin",
    description: "Opens notebooks in Databricks source format as notebooks.",
    autoStart: true,
    activate,
  };

  globalThis._JUPYTERLAB = globalThis._JUPYTERLAB ?? {};
  globalThis._JUPYTERLAB["topiclake-notebooks"] = {
    init: () => undefined,
    get: async () => () => ({ __esModule: true, default: plugin }),
  };
})();
