// Serves a run over HTTP, read-only: / (a page), /api/run (JSON), /metrics (Prometheus), /healthz.
#pragma once

#include <memory>
#include <string>

#include "weft/observe/live/address.h"
#include "weft/observe/live/run_view.h"

namespace weft::observe {

// Methods other than GET and HEAD get 405, other paths get 404. On a loopback address, a Host
// header that names another machine gets 403. Otherwise a web page could read a run through a name
// that resolves to this machine (DNS rebinding).
//
// Limits: 8 KiB for the request line and for each header, 16 threads. An idle connection is closed
// after 1 s, a stalled request after 2 s, and every connection after 20 s.
class HttpServer {
 public:
  // Listens on the address. Throws Error(kUnavailable), naming --http, if that fails. `view` must
  // outlive the server.
  HttpServer(const HttpAddress& address, RunView& view);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The address, with the actual port.
  const HttpAddress& address() const;
  // Answers requests until stop(). Call it once.
  void serve();
  // Any thread may call it.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::observe
