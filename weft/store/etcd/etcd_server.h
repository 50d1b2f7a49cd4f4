// The store process of a node whose store is etcd: passes requests of the ranks on to etcd.
#pragma once

#include <string>

#include "weft/base/file.h"

namespace weft::store {

struct EtcdServerOptions {
  std::string url;    // parse_etcd_url()
  UniqueFd clients;   // listening Unix socket (listen_locally() in store/client.h)
  UniqueFd lifeline;  // the process ends when this is closed by the launcher
};

// Serves until the lifeline closes, then ends the process without waiting for requests. A thread
// for each connection; at most 512 connections, further ones wait. Throws Error(kBadConfig) for an
// invalid URL.
[[noreturn]] void serve_etcd(EtcdServerOptions options);

}  // namespace weft::store
