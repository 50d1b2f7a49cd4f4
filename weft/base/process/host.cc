#include "weft/base/process/host.h"

#include <algorithm>
#include <cctype>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr const char* kBlanks = " \t\r\n";

}  // namespace

std::string parse_host(const std::string& name, const std::string& text,
                       const std::string& port_name) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kBadConfig, name + " \"" + text + "\": " + why);
  };
  const auto begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) refuse("expected a host name or address");
  const std::string host = text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  if (const auto scheme = host.find("://"); scheme != std::string::npos)
    refuse("expected a host name or address, without \"" + host.substr(0, scheme + 3) +
           "\"; the port goes into " + port_name);
  const auto colons = std::count(host.begin(), host.end(), ':');
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool has_port =
      colons == 1 || (host.front() == '[' && host.find("]:") != std::string::npos);
  if (has_port) {
    const auto colon = host.rfind(':');
    refuse("expected a host name or address without a port; set " + port_name + " to " +
           (colon + 1 < host.size() ? host.substr(colon + 1) : "the port"));
  }
  const std::string bare = is_bracketed ? host.substr(1, host.size() - 2) : host;
  const bool is_host = std::all_of(bare.begin(), bare.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 || c == '.' || c == '-' || c == '_' || c == ':' ||
           c == '%';
  });
  if (!is_host) refuse("expected a host name or address, such as node0 or 10.0.0.1");
  return bare;
}

}  // namespace weft
