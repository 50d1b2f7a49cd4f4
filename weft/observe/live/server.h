// Serves a run over HTTP, read-only: / (a page), /api/run (JSON), /metrics (Prometheus), /healthz.
#pragma once

#include <memory>
#include <string>

#include "weft/observe/live/address.h"
#include "weft/observe/live/run_view.h"

namespace weft::observe {

// Other methods than GET and HEAD get 405, other paths 404. On a loopback address a Host header
// that names another machine gets 403, so that no page of the web reads a run through a name that
// resolves to this machine. The line of a request and each header have at most 8 KiB. A connection
// that sends nothing is closed after 1 s, in the middle of a request after 2 s, and every one after
// 20 s. 16 threads answer.
class HttpServer {
 public:
  // Listens. Throws Error(kUnavailable), naming --http, where the address cannot be had. `view`
  // outlives the server.
  HttpServer(const HttpAddress& address, RunView& view);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that was chosen.
  const HttpAddress& address() const;
  // Answers until stop(). Call it once.
  void serve();
  // Any thread may call it.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::observe
