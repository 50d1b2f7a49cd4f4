// One rank of weft: the TCP endpoint and the executor, without torch. rank.h describes its
// commands.
//
//   weft_network_rank RANK HOST:PORT HOST:PORT …        the addresses of all ranks, in rank order
//
// WEFT_NETWORK_CONGESTION and WEFT_NETWORK_ZERO_COPY=never|always override the endpoint's defaults.
#include <exception>

#include "bench/network/rank.h"
#include "weft/net/execute/executor.h"
#include "weft/net/tcp/tcp.h"

namespace weft::bench {
namespace {

constexpr net::Channel kSums = 1, kBarriers = 2;
constexpr std::size_t kSmall = std::size_t{32} << 10;

std::unique_ptr<net::Endpoint> connect(int rank, const std::vector<std::string>& addresses) {
  net::TcpOptions options;
  options.rank = rank;
  options.world = static_cast<int>(addresses.size());
  options.job = "weft bench network";
  const std::string& mine = addresses[static_cast<std::size_t>(rank)];
  const auto colon = mine.rfind(':');
  options.interface = mine.substr(0, colon);
  options.port = std::stoi(mine.substr(colon + 1));
  if (const char* congestion = std::getenv("WEFT_NETWORK_CONGESTION"))
    options.congestion = congestion;
  if (const char* set = std::getenv("WEFT_NETWORK_ZERO_COPY")) {
    options.zero_copy =
        std::string(set) == "never" ? net::ZeroCopy::kNever : net::ZeroCopy::kAlways;
  }
  options.exchange = [&](const std::string&) { return addresses; };
  return net::connect_tcp(options);
}

void run(int rank, const std::vector<std::string>& addresses) {
  const auto endpoint = connect(rank, addresses);
  net::Executor executor;
  const auto collective = [&](schedule::Collective what, float* data, std::size_t count,
                              net::Channel channel) {
    const bool small = count * sizeof(float) <= kSmall;
    const schedule::Request request{.collective = what,
                                    .algorithm = small ? schedule::Algorithm::kRecursiveDoubling
                                                       : schedule::Algorithm::kSharded,
                                    .rank = endpoint->rank(),
                                    .world = endpoint->world(),
                                    .count = static_cast<std::int64_t>(count)};
    const auto deadline = Deadline::in(std::chrono::seconds(60));
    executor.run(schedule::make(request), *endpoint,
                 {.input = data, .output = data, .channel = channel, .deadline = deadline});
  };
  serve({.rank = rank,
         .world = endpoint->world(),
         .all_reduce =
             [&](float* data, std::size_t count) {
               collective(schedule::Collective::kAllReduce, data, count, kSums);
             },
         .barrier = [&] { collective(schedule::Collective::kBarrier, nullptr, 0, kBarriers); }});
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: weft_network_rank RANK HOST:PORT…\n";
    return 2;
  }
  try {
    weft::bench::run(std::stoi(argv[1]), std::vector<std::string>(argv + 2, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "weft_network_rank " << argv[1] << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}
