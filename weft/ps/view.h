// Which servers serve a shard, in which order: the configuration of chain replication (van Renesse
// and Schneider 2004, "Chain replication for supporting high throughput and availability"). Views
// have numbers. A directory holds the newest view of each shard, and replaces it only if the caller
// has seen the one before.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/deadline.h"

namespace weft::ps {

// A server from its start, or from the time at which it lost its place, to its end.
struct Member {
  std::uint32_t server = 0;
  std::uint64_t incarnation = 0;  // random
  bool operator==(const Member&) const = default;
};

struct View {
  std::uint64_t number = 0;  // 0: nobody has served the shard yet
  // The first one serves the clients. Each passes commands on to the next.
  std::vector<Member> members;
  // Receives the state from the last member, and becomes the last one then.
  std::optional<Member> joining;
  bool operator==(const View&) const = default;

  bool has(const Member& member) const;
};

// The view after this one, without this server; none if no member would be left.
std::optional<View> without(const View& view, std::uint32_t server);

// Where a server can be reached.
struct ServerAddress {
  std::string local;  // Unix socket, for processes of its host
  std::string tcp;    // host:port; empty: it serves its own host only
  bool operator==(const ServerAddress&) const = default;
};

// What all servers and clients of a parameter server know. All calls are linearizable. Errors are
// those of store::Store. Any thread may call any method.
class Directory {
 public:
  virtual ~Directory() = default;

  // The newest views of all shards that have one.
  virtual std::map<std::uint32_t, View> views(Deadline deadline) = 0;
  // Puts `next` in the place of the view with the number before it. False: it is not the newest.
  virtual bool replace(std::uint32_t shard, const View& next, Deadline deadline) = 0;

  virtual std::map<std::uint32_t, ServerAddress> servers(Deadline deadline) = 0;
  virtual void announce(std::uint32_t server, const ServerAddress& address, Deadline deadline) = 0;
};

// For servers and clients in one process.
class MemoryDirectory final : public Directory {
 public:
  std::map<std::uint32_t, View> views(Deadline deadline) override;
  bool replace(std::uint32_t shard, const View& next, Deadline deadline) override;
  std::map<std::uint32_t, ServerAddress> servers(Deadline deadline) override;
  void announce(std::uint32_t server, const ServerAddress& address, Deadline deadline) override;

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, View> views_;             // guarded by mutex_
  std::map<std::uint32_t, ServerAddress> servers_;  // guarded by mutex_
};

// In a folder, for the processes of one host. Creates the folder; the last user removes it. Throws
// as the functions of base/file.h.
std::unique_ptr<Directory> folder_directory(const std::string& folder);

// The directory with this name of the job that this process belongs to. In the store of the job
// (weft/store), if it has one: `store` is the socket of the node's store process; empty:
// WEFT_STORE, which `weft run` sets for several nodes. Otherwise, in a job of one node that weft
// run or torchrun has started, in a folder below TMPDIR, whose name has the run id and the process
// number of the launcher, or below WEFT_PS_FOLDER, which `weft run --servers` sets. After a restart
// of all ranks, it is empty. Throws Error(kInvalidArgument) outside of a job.
std::unique_ptr<Directory> job_directory(const std::string& name, const std::string& store = "");

}  // namespace weft::ps
