#include "weft/observe/live/address.h"

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"

namespace weft::observe {
namespace {

[[noreturn]] void refuse_address(const std::string& text, const std::string& why) {
  throw Error(Errc::kInvalidArgument,
              "--http " + text + ": " + why + "; give HOST:PORT, such as 127.0.0.1:0");
}

}  // namespace

bool HttpAddress::is_loopback() const {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

std::string HttpAddress::url() const {
  const bool six = host.find(':') != std::string::npos;
  return "http://" + (six ? "[" + host + "]" : host) + ":" + std::to_string(port) + "/";
}

HttpAddress parse_http_address(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) refuse_address(text, "there is no port");
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    refuse_address(text, "an IPv6 address needs brackets");
  }
  if (host.empty()) refuse_address(text, "there is no host");
  const auto number = parse_count(port);
  if (!number || *number > 65535) refuse_address(text, "the port is not a number from 0 to 65535");
  return {host, *number};
}

}  // namespace weft::observe
