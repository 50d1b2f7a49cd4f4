// weft's part of the bench of the parameter server: servers and workers as processes. Each worker
// pushes a gradient and pulls the values, asynchronously, as fast as it can.
//
//   weft_bench_ps [transport=local] [servers=1] [backup=0] [workers=2] [parameters=235146]
//                 [push=none] [pull=none] [seconds=3]
//
// A worker writes its gradient before each push. An update is a push and the pull after it. Writes
// one JSON object: the updates of all workers in a second. `verified`: the values are those of SGD
// with these gradients (not with lossy codecs).
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/ps/testing/processes.h"

namespace weft::bench {
namespace {

using namespace std::chrono_literals;
using ps::testing::Child;
using Clock = std::chrono::steady_clock;

constexpr int kMostWorkers = 16;
// A power of two: with small whole gradients, all sums are exact in float32.
constexpr double kLr = 1.0 / 1024;

struct Settings {
  bool local = true, backup = false;
  std::uint32_t servers = 1, workers = 2;
  std::size_t parameters = 235'146;  // of an MLP with the layers 784, 256, 128, 10
  std::string push = "none", pull = "none";
  double seconds = 3;
};

struct Board {
  std::atomic<std::uint32_t> ready, left;
  std::atomic<bool> go, stop, may_end;
  std::atomic<std::int64_t> updates[kMostWorkers];
};

Settings read_settings(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    given[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  const auto take = [&](const std::string& name, const std::string& otherwise) {
    const auto found = given.find(name);
    const std::string value = found == given.end() ? otherwise : found->second;
    given.erase(name);
    return value;
  };
  Settings s;
  s.local = take("transport", "local") == "local";
  s.backup = take("backup", "0") == "1";
  s.servers = static_cast<std::uint32_t>(std::stoul(take("servers", "1")));
  s.workers = static_cast<std::uint32_t>(std::stoul(take("workers", "2")));
  s.parameters = std::stoul(take("parameters", "235146"));
  s.push = take("push", "none");
  s.pull = take("pull", "none");
  s.seconds = std::stod(take("seconds", "3"));
  WEFT_REQUIRE(given.empty(), "unknown setting " + given.begin()->first);
  WEFT_REQUIRE(s.workers >= 1 && s.workers <= kMostWorkers, "1 to 16 workers");
  return s;
}

float gradient_of(std::size_t i) { return static_cast<float>(i % 5) - 2; }

ps::Options options_of(const Settings& s) {
  ps::Options options;
  options.rule = kernels::Sgd{.lr = kLr};
  options.staleness = ps::kAsync;
  options.push_codec = s.push;
  options.pull_codec = s.pull;
  return options;
}

ps::ClientOptions client_of(const Settings& s, ps::Directory& directory,
                            std::optional<std::uint32_t> worker) {
  ps::ClientOptions options;
  options.directory = &directory;
  options.servers = s.servers;
  options.worker = worker;
  options.local = s.local;
  return options;
}

void serve(const Settings& s, const std::string& store, std::uint32_t number) {
  const auto directory = ps::job_directory("bench", store);
  ps::ServerOptions options;
  options.directory = directory.get();
  options.server = number;
  options.servers = s.servers;
  options.backup = s.backup;
  const ps::Server server(options);
  while (!server.failure()) std::this_thread::sleep_for(100ms);
  throw Error(*server.failure());
}

void work(const Settings& s, const std::string& store, std::uint32_t worker, Board& board) {
  const auto directory = ps::job_directory("bench", store);
  ps::Client client(client_of(s, *directory, worker));
  const std::vector<float> zeros(s.parameters);
  client.define({{"w", zeros}}, options_of(s));
  client.join();
  std::vector<float> gradient(s.parameters);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_of(i);
  ++board.ready;
  while (!board.go) std::this_thread::sleep_for(100us);
  std::int64_t updates = 0;
  for (; !board.stop; ++updates) {
    std::memcpy(client.gradient("w").data(), gradient.data(), sizeof(float) * gradient.size());
    client.push();
    client.wait(client.pull());
    board.updates[worker].store(updates + 1, std::memory_order_relaxed);
  }
  client.leave();
  ++board.left;
  while (!board.may_end) std::this_thread::sleep_for(1ms);
}

int run(int argc, char** argv) {
  const Settings s = read_settings(argc, argv);
  void* const page =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  Board& board = *new (page) Board();
  const ps::testing::ForkedStore store;
  std::vector<Child> servers, workers;
  for (std::uint32_t i = 0; i < s.servers; ++i)
    servers.emplace_back([&, i] { serve(s, store.name(), i); });
  for (std::uint32_t i = 0; i < s.workers; ++i)
    workers.emplace_back([&, i] { work(s, store.name(), i, board); });
  while (board.ready < s.workers) {
    std::this_thread::sleep_for(1ms);
    for (Child& child : workers) {
      if (child.has_ended()) throw Error(Errc::kInternal, "a worker ended before the run");
    }
  }
  const auto count = [&] {
    std::int64_t all = 0;
    for (const auto& one : board.updates) all += one;
    return all;
  };
  board.go = true;
  std::this_thread::sleep_for(300ms);  // warm-up
  const auto start = Clock::now();
  const std::int64_t before = count();
  std::this_thread::sleep_for(std::chrono::duration<double>(s.seconds));
  const std::int64_t after = count();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  board.stop = true;

  const auto directory = ps::job_directory("bench", store.name());
  ps::Client reader(client_of(s, *directory, {}));
  const std::vector<float> zeros(s.parameters);
  reader.define({{"w", zeros}}, options_of(s));
  const Deadline patience = Deadline::in(30s);
  while (board.left < s.workers) {
    if (patience.passed()) throw Error(Errc::kTimeout, "the workers do not end");
    std::this_thread::sleep_for(1ms);
  }
  reader.wait(reader.pull());
  bool verified = true;
  const auto all = static_cast<double>(count());
  for (std::size_t i = 0; i < s.parameters && s.push == "none" && s.pull == "none"; ++i)
    verified = verified && reader.value("w")[i] == static_cast<float>(-kLr * all * gradient_of(i));
  board.may_end = true;
  std::cout << "{\"impl\":\"weft-ps\",\"transport\":\"" << (s.local ? "local" : "tcp")
            << "\",\"servers\":" << s.servers << ",\"backup\":" << (s.backup ? "true" : "false")
            << ",\"push\":\"" << s.push << "\",\"pull\":\"" << s.pull
            << "\",\"workers\":" << s.workers << ",\"parameters\":" << s.parameters
            << ",\"updates_per_s\":" << static_cast<double>(after - before) / seconds
            << ",\"verified\":" << (verified ? "true" : "false") << "}" << std::endl;
  return verified ? 0 : 1;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  try {
    return weft::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "weft_bench_ps: " << weft::describe(error) << '\n';
    return 1;
  }
}
