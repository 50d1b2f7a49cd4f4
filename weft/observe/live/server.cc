#include "weft/observe/live/server.h"

#include <httplib.h>

#include <thread>

#include "weft/base/error.h"
#include "weft/observe/live/internal/old_connections.h"
#include "weft/observe/report/report.h"

namespace weft::observe {
namespace {

using httplib::Request;
using httplib::Response;
using httplib::Server;

constexpr int kThreads = 16, kPatienceSeconds = 2, kRequestsOfAConnection = 100;
constexpr int kSecondsOfAConnection = 20;
constexpr std::size_t kMaxPayload = 1024;

// The host name or address in "name:port" or "[::1]:port".
std::string host_of(const std::string& header) {
  if (!header.empty() && header[0] == '[') return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.rfind(':'));
}

bool is_number_or_local(const std::string& host, const std::string& bound) {
  return host.empty() || host == bound || host == "localhost" ||
         host.find_first_not_of("0123456789.") == std::string::npos ||
         host.find(':') != std::string::npos;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpAddress& address, RunView& view) : address_(address), view_(view) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    // Replaces the library's default, SO_REUSEPORT, which lets two runs share a port.
    server_.set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    server_.set_keep_alive_max_count(kRequestsOfAConnection);
    server_.set_keep_alive_timeout(1);  // an idle connection occupies a thread
    server_.set_read_timeout(kPatienceSeconds);
    server_.set_write_timeout(kPatienceSeconds);
    server_.set_payload_max_length(kMaxPayload);
    server_.set_default_headers({{"Cache-Control", "no-store"},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"X-Frame-Options", "DENY"}});
    // Handles all requests here, so that no path is matched by a regular expression.
    server_.set_pre_routing_handler([this](const Request& request, Response& response) {
      answer(request, response);
      return Server::HandlerResponse::Handled;
    });
    const int port = address.port == 0 ? server_.bind_to_any_port(address.host)
                     : server_.bind_to_port(address.host, address.port) ? address.port
                                                                        : -1;
    if (port < 0) {
      throw Error(Errc::kUnavailable,
                  "--http " + address.host + ":" + std::to_string(address.port) +
                      ": this address cannot be listened on; the port is taken, or the host is not "
                      "an address of this machine");
    }
    address_.port = port;
  }

  const HttpAddress& address() const { return address_; }
  void serve() {
    const std::jthread watcher([](const std::stop_token& stop) {
      OldConnections connections;
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        connections.look(kSecondsOfAConnection);
      }
    });
    server_.listen_after_bind();
  }
  void stop() { server_.stop(); }

 private:
  void answer(const Request& request, Response& response) {
    const auto text = [&](int status, const std::string& body) {
      response.status = status;
      response.set_content(body, "text/plain; charset=utf-8");
    };
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      response.set_header("Connection", "close");  // the rest of the request is not read
      return text(405, "only GET and HEAD\n");
    }
    if (address_.is_loopback() &&
        !is_number_or_local(host_of(request.get_header_value("Host")), address_.host))
      return text(403, "this page is for its own machine: use " + address_.url() + "\n");
    if (request.path == "/healthz") return text(200, "ok\n");
    if (request.path == "/metrics") {
      response.status = 200;
      return response.set_content(view_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    }
    if (request.path == "/api/run") {
      const auto json = view_.json();
      if (!json) return text(503, "there is no run yet\n");
      response.status = 200;
      return response.set_content(*json, "application/json");
    }
    if (request.path != "/") return text(404, "not found\n");
    response.status = 200;
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; style-src 'unsafe-inline'; script-src "
                        "'unsafe-inline'; connect-src 'self'");
    response.set_content(page_, "text/html; charset=utf-8");
  }

  HttpAddress address_;
  RunView& view_;
  const std::string page_ = live_html();
  Server server_;
};

HttpServer::HttpServer(const HttpAddress& address, RunView& view)
    : impl_(std::make_unique<Impl>(address, view)) {}
HttpServer::~HttpServer() = default;
const HttpAddress& HttpServer::address() const { return impl_->address(); }
void HttpServer::serve() { impl_->serve(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace weft::observe
