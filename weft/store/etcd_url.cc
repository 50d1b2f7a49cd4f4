#include "weft/store/etcd_url.h"

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"

namespace weft::store {
namespace {

constexpr const char* kScheme = "etcd://";

[[noreturn]] void refuse_url(const std::string& text, const std::string& why) {
  throw Error(Errc::kBadConfig,
              "--rendezvous " + text + ": " + why + "; give etcd://HOST:PORT,HOST:PORT/PREFIX");
}

EtcdUrl::Endpoint parse_endpoint(const std::string& text, const std::string& url) {
  EtcdUrl::Endpoint endpoint;
  const auto bracket = text.rfind(']');
  const auto colon = text.rfind(':');
  const bool has_port =
      colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  endpoint.host = has_port ? text.substr(0, colon) : text;
  if (endpoint.host.size() > 2 && endpoint.host.front() == '[' && endpoint.host.back() == ']')
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  if (endpoint.host.empty()) refuse_url(url, "there is no host in '" + text + "'");
  if (!has_port) return endpoint;
  const std::string port = text.substr(colon + 1);
  endpoint.port = parse_number<int>(port).value_or(0);
  if (endpoint.port < 1 || endpoint.port > 65535) refuse_url(url, "'" + port + "' is not a port");
  return endpoint;
}

}  // namespace

std::string EtcdUrl::Endpoint::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

EtcdUrl parse_etcd_url(const std::string& text) {
  const std::string scheme = kScheme;
  if (text.rfind(scheme, 0) != 0) refuse_url(text, "it does not begin with etcd://");
  const auto slash = text.find('/', scheme.size());
  std::string hosts = text.substr(
      scheme.size(), slash == std::string::npos ? std::string::npos : slash - scheme.size());
  EtcdUrl url;
  if (slash != std::string::npos && slash + 1 < text.size()) url.prefix = text.substr(slash + 1);
  for (;;) {
    const auto comma = hosts.find(',');
    url.endpoints.push_back(parse_endpoint(hosts.substr(0, comma), text));
    if (comma == std::string::npos) return url;
    hosts.erase(0, comma + 1);
  }
}

}  // namespace weft::store
