// A server of a parameter server: holds shards of the tensors, applies pushes, answers pulls, and
// is the backup of another server's shard.
//
//   ps::MemoryDirectory directory;                      // or ps::job_directory(name)
//   ps::Server server({.directory = &directory, .server = 0, .servers = 2});
//
// A server has one thread. It may run in a process of its own or in that of a worker. Server i
// founds shard i and is the backup of shard i - 1. Clients of its host reach it through a Unix
// socket and shared memory, others over TCP with the secret of the job.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "weft/base/error.h"
#include "weft/ps/view.h"

namespace weft::ps {

struct ServerOptions {
  Directory* directory = nullptr;  // must outlive the server
  std::uint32_t server = 0;        // number of this server, from 0
  std::uint32_t servers = 1;       // number of servers, which is also the number of shards
  // With a backup, each push is acknowledged when two servers have it. Not with one server.
  bool backup = true;
  // Most bytes of values, optimizer states, rows and waiting pushes, of each shard. A backup needs
  // as much again. The same for all servers.
  std::int64_t memory_mb = 4096;
  // Folder for the files of mapped tables (TableSpec::mapped). Nothing is left there when the
  // server has ended. Empty: mapped tables are refused.
  std::string folder;
  // Most bytes of these files, of each shard.
  std::int64_t folder_mb = 65'536;

  // Address, network or interface to listen on for other hosts, as in net/tcp/tcp.h. Empty: only
  // processes of this host reach the server.
  std::string interface = "127.0.0.1";
  int port = 0;           // 0: a free port
  std::string advertise;  // host that others connect to; empty: the bound address
  std::string job;        // processes of another job are refused
  std::optional<std::array<std::byte, 32>> secret;  // Secret of the job.

  // A worker without a connection for this long (100 ms to a year) does not count any more. After
  // the loss of a server, its workers have ten times as long to connect with the one that replaces
  // it.
  std::chrono::milliseconds worker_timeout{2'000};
  // A server of the chain that is silent for this long (100 ms to a year) is left out.
  std::chrono::milliseconds server_timeout{700};
};

class Server {
 public:
  // Listens, announces itself in the directory, and starts its thread. Throws
  // Error(kInvalidArgument) for options, and Error(kUnavailable) if it cannot listen.
  explicit Server(ServerOptions options);
  // Ends the thread, which takes at most the time of one call of the directory.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  ServerAddress address() const;
  // True if workers have joined, all have left, and no client has been connected for a second.
  bool is_over() const;
  // True if each shard of this server has a second copy, as far as this server knows.
  bool is_replicated() const;
  // A shard whose values are lost: this server was the last one that had it, and was started again.
  std::optional<std::uint32_t> lost_shard() const;
  // The error that has ended the server's thread.
  std::optional<Error> failure() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace weft::ps
