// For the benches of the parameter server: servers and workers as processes, and how many
// operations the workers make in a second.
#pragma once

#include <atomic>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/ps/testing/processes.h"

namespace weft::bench {

constexpr int kMaxWorkers = 16;
// Learning rate: a power of two, so that all sums are exact in float32 with gradient_of().
constexpr double kLr = 1.0 / 1024;

inline float gradient_of(std::size_t i) { return static_cast<float>(i % 5) - 2; }

// Settings of the command line: name=value.
class Words {
 public:
  Words(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      given_[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }
  }
  std::string take(const std::string& name, const std::string& otherwise) {
    const auto found = given_.find(name);
    const std::string value = found == given_.end() ? otherwise : found->second;
    given_.erase(name);
    return value;
  }
  void expect_end() const {
    WEFT_REQUIRE(given_.empty(), "unknown setting " + given_.begin()->first);
  }

 private:
  std::map<std::string, std::string> given_;
};

struct Common {
  explicit Common(Words& words)
      : local(words.take("transport", "local") == "local"),
        backup(words.take("backup", "0") == "1"),
        servers(static_cast<std::uint32_t>(std::stoul(words.take("servers", "1")))),
        workers(static_cast<std::uint32_t>(std::stoul(words.take("workers", "2")))),
        seconds(std::stod(words.take("seconds", "3"))),
        folder(words.take("folder", "")) {
    WEFT_REQUIRE(workers >= 1 && workers <= kMaxWorkers, "1 to 16 workers");
  }
  // The beginning of the JSON object of a result.
  std::string json(const std::string& impl) const {
    return "{\"impl\":\"" + impl + "\",\"transport\":\"" + (local ? "local" : "tcp") +
           "\",\"servers\":" + std::to_string(servers) +
           ",\"backup\":" + (backup ? "true" : "false") + ",\"workers\":" + std::to_string(workers);
  }

  bool local, backup;
  std::uint32_t servers, workers;
  double seconds;
  std::string folder;  // for the servers' mapped tables
};

// What the processes share.
struct Board {
  std::atomic<std::uint32_t> ready, left;
  std::atomic<bool> go, stop, may_end;
  std::atomic<std::int64_t> counts[kMaxWorkers];

  static Board& make() {
    void* const page =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    return *new (page) Board();
  }
};

// What is measured. A worker's process calls define() and prepare(), and then the operation that
// prepare() returns, as often as it can.
struct Measured {
  std::function<void(ps::Client&)> define;
  std::function<std::function<void()>(ps::Client&, std::uint32_t worker)> prepare;
  // Checks the values after the run, by the operations of each worker.
  std::function<bool(ps::Client&, const std::vector<std::int64_t>&)> verify;
};

struct Result {
  double per_second = 0;  // operations of all workers
  bool verified = false;
};

inline ps::ClientOptions client_of(const Common& common, ps::Directory& directory,
                                   std::optional<std::uint32_t> worker) {
  ps::ClientOptions options;
  options.directory = &directory;
  options.servers = common.servers;
  options.worker = worker;
  options.local = common.local;
  return options;
}

inline void serve(const Common& common, const std::string& store, std::uint32_t number) {
  const auto directory = ps::job_directory("bench", store);
  ps::ServerOptions options;
  options.directory = directory.get();
  options.server = number;
  options.servers = common.servers;
  options.backup = common.backup;
  options.folder = common.folder;
  const ps::Server server(options);
  while (!server.failure()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  throw Error(*server.failure());
}

inline void work(const Common& common, const std::string& store, std::uint32_t worker,
                 const Measured& measured, Board& board) {
  const auto directory = ps::job_directory("bench", store);
  ps::Client client(client_of(common, *directory, worker));
  measured.define(client);
  client.join();
  const std::function<void()> operate = measured.prepare(client, worker);
  ++board.ready;
  while (!board.go) std::this_thread::sleep_for(std::chrono::microseconds(100));
  for (std::int64_t count = 1; !board.stop; ++count) {
    operate();
    board.counts[worker].store(count, std::memory_order_relaxed);
  }
  client.leave();
  ++board.left;
  while (!board.may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline std::vector<std::int64_t> counts_of(const Common& common, const Board& board) {
  std::vector<std::int64_t> counts;
  for (std::uint32_t i = 0; i < common.workers; ++i) counts.push_back(board.counts[i]);
  return counts;
}

inline Result measure(const Common& common, const Measured& measured) {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  Board& board = Board::make();
  const ps::testing::ForkedStore store;
  std::vector<ps::testing::Child> servers, workers;
  for (std::uint32_t i = 0; i < common.servers; ++i)
    servers.emplace_back([&, i] { serve(common, store.name(), i); });
  for (std::uint32_t i = 0; i < common.workers; ++i)
    workers.emplace_back([&, i] { work(common, store.name(), i, measured, board); });
  while (board.ready < common.workers) {
    std::this_thread::sleep_for(1ms);
    for (ps::testing::Child& child : workers)
      if (child.has_ended()) throw Error(Errc::kInternal, "a worker ended before the run");
  }
  const auto total = [&] {
    std::int64_t all = 0;
    for (const std::int64_t one : counts_of(common, board)) all += one;
    return all;
  };
  board.go = true;
  std::this_thread::sleep_for(300ms);  // warm-up
  const auto start = Clock::now();
  const std::int64_t before = total();
  std::this_thread::sleep_for(std::chrono::duration<double>(common.seconds));
  const std::int64_t after = total();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  board.stop = true;

  const auto directory = ps::job_directory("bench", store.name());
  ps::Client reader(client_of(common, *directory, {}));
  measured.define(reader);
  for (const Deadline patience = Deadline::in(30s); board.left < common.workers;) {
    if (patience.passed()) throw Error(Errc::kTimeout, "the workers do not end");
    std::this_thread::sleep_for(1ms);
  }
  const bool verified = measured.verify(reader, counts_of(common, board));
  board.may_end = true;
  return {static_cast<double>(after - before) / seconds, verified};
}

// Writes the JSON object of a result: `fields` are what was measured besides Common. Returns the
// exit code.
inline int write(const Common& common, const std::string& fields, double per_second,
                 bool verified) {
  std::cout << common.json("weft-ps") << fields << ",\"per_second\":" << per_second
            << ",\"verified\":" << (verified ? "true" : "false") << "}" << std::endl;
  return verified ? 0 : 1;
}

inline int run_bench(const char* name, int argc, char** argv, int (*run)(Words&)) {
  try {
    Words words(argc, argv);
    return run(words);
  } catch (const std::exception& error) {
    std::cerr << name << ": " << describe(error) << '\n';
    return 1;
  }
}

}  // namespace weft::bench
