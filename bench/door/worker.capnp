# The worker of worker.js, with its objects in SQLite files. Address and folder
# come from the command line.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "store", disk = (writable = true)),
  ],
  sockets = [(name = "http", http = (), service = "main")],
);

const worker :Workerd.Worker = (
  modules = [(name = "worker.js", esModule = embed "worker.js")],
  compatibilityDate = "2026-11-01",
  compatibilityFlags = ["experimental"],
  bindings = [(name = "BENCH", durableObjectNamespace = "Bench")],
  durableObjectNamespaces = [(className = "Bench", uniqueKey = "bench", enableSql = true)],
  durableObjectStorage = (localDisk = "store"),
);
