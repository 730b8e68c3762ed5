/*
 * A double click on a notebook in Databricks source format opens it as a notebook.
 *
 * JupyterLab chooses what opens a file by the file's name, and the names of these notebooks end as those of
 * modules do. The server tells them apart (workbench.lab.contents), so each answer of the server is looked at
 * before JupyterLab asks for a file's default viewer.
 *
 * Written by hand in the form in which JupyterLab loads extensions: it needs no module but what JupyterLab
 * gives to `activate`, so there is nothing to build.
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

  function activate(app) {
    const contents = app.serviceManager.contents;
    const registry = app.docRegistry;

    const get = contents.get.bind(contents);
    contents.get = async (path, options) => {
      const model = await get(path, options);
      // An editor asks for the file's text and is told that it is a file.
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
