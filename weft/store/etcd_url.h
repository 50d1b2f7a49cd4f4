// Address of a store in etcd: "etcd://HOST:PORT[,HOST:PORT…][/PREFIX]".
#pragma once

#include <string>
#include <vector>

namespace weft::store {

struct EtcdUrl {
  struct Endpoint {
    std::string host;
    int port = 2379;
    std::string text() const;
  };
  std::vector<Endpoint> endpoints;  // of one etcd cluster
  std::string prefix = "weft";      // of all keys in etcd
};

// Throws Error(kBadConfig), naming --rendezvous.
EtcdUrl parse_etcd_url(const std::string& text);

}  // namespace weft::store
