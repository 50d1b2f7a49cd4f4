// Address of the live page: "127.0.0.1:8080", "[::1]:0", "localhost:0". Port 0: a free port.
#pragma once

#include <string>

namespace weft::observe {

struct HttpAddress {
  std::string host;  // without brackets
  int port = 0;

  // True if only this machine can connect.
  bool is_loopback() const;
  // "http://127.0.0.1:8080/"
  std::string url() const;
};

// Throws Error(kInvalidArgument), naming --http, unless `text` is HOST:PORT.
HttpAddress parse_http_address(const std::string& text);

}  // namespace weft::observe
