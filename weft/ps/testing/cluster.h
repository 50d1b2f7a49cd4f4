// Servers in this process, for tests of clients.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "weft/ps/client.h"
#include "weft/ps/server.h"

namespace weft::ps::testing {

struct Cluster {
  explicit Cluster(std::uint32_t count, const ServerOptions& given = {})
      : base(given), servers(count) {
    for (std::uint32_t i = 0; i < count; ++i) start(i);
  }
  void start(std::uint32_t server) {
    ServerOptions options = base;
    options.directory = &directory;
    options.server = server;
    options.servers = static_cast<std::uint32_t>(servers.size());
    servers[server] = std::make_unique<Server>(std::move(options));
  }
  ClientOptions client(std::optional<std::uint32_t> worker, bool local = true) {
    ClientOptions options;
    options.directory = &directory;
    options.servers = static_cast<std::uint32_t>(servers.size());
    options.worker = worker;
    options.local = local;
    options.timeout = std::chrono::seconds(20);
    return options;
  }
  // Until each shard has two servers.
  void wait_for_backups() { wait_for_members(2); }
  void wait_for_members(std::size_t count) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(10));
    const auto has_all = [&](const auto& one) { return one.second.members.size() == count; };
    for (;;) {
      const auto views = directory.views(deadline);
      if (views.size() == servers.size() && std::all_of(views.begin(), views.end(), has_all))
        return;
      if (deadline.passed())
        throw Error(Errc::kTimeout, "the shards have other numbers of servers");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  const ServerOptions base;
  MemoryDirectory directory;
  std::vector<std::unique_ptr<Server>> servers;
};

}  // namespace weft::ps::testing
