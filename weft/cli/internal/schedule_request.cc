#include "weft/cli/internal/schedule_request.h"

#include <sstream>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"

namespace weft::cli::internal {
namespace {

using schedule::Algorithm;
using schedule::Collective;
using schedule::Topology;
using SharedTopology = std::shared_ptr<const Topology>;

// Parses a whole number from 1 to `most`; returns none for any other text.
std::optional<int> whole(std::string_view text, int most) {
  const auto value = parse_number<int>(text);
  return value && *value >= 1 && *value <= most ? value : std::nullopt;
}

// Parses "4x8"; both numbers are at least 1.
std::optional<std::pair<int, int>> product(std::string_view text) {
  const std::size_t x = text.find('x');
  if (x == std::string_view::npos) return std::nullopt;
  const auto first = whole(text.substr(0, x), Topology::kMaxWorld),
             second = whole(text.substr(x + 1), Topology::kMaxWorld);
  return first && second ? std::optional(std::pair(*first, *second)) : std::nullopt;
}

SharedTopology topology_of(const ScheduleChoice& choice) {
  const int said =
      int{!choice.hosts.empty()} + int{!choice.topology.empty()} + int{!choice.grid.empty()};
  WEFT_REQUIRE(said <= 1,
               "--hosts, --grid and --topology say where the ranks are; give one of them");
  if (!choice.topology.empty())
    return std::make_shared<const Topology>(Topology::load(choice.topology));
  if (!choice.hosts.empty())
    return std::make_shared<const Topology>(Topology::hosts(host_sizes(choice.hosts)));
  if (choice.grid.empty()) return nullptr;
  const auto sides = product(choice.grid);
  WEFT_REQUIRE(sides, "--grid " + choice.grid + ": expected rows x columns, such as 4x8");
  return std::make_shared<const Topology>(Topology::grid({sides->first, sides->second}));
}

// Whether the request's algorithm splits the data into chunks (--chunk).
bool is_pipelined(const schedule::Request& q) {
  const auto one = [&](Algorithm a) {
    return a == Algorithm::kChain || a == Algorithm::kDoubleBinaryTree;
  };
  const bool by_blocks =
      q.collective == Collective::kReduceScatter || q.collective == Collective::kAllGather;
  return one(q.algorithm) || (q.algorithm == Algorithm::kHierarchical && !by_blocks);
}

}  // namespace

std::vector<int> host_sizes(const std::string& text) {
  std::vector<int> sizes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto many = product(word);
    const auto one = whole(word, Topology::kMaxWorld);
    WEFT_REQUIRE(many || one, "--hosts " + text +
                                  ": expected the ranks of each, such as 4,4,3 or 2x4,3 (two hosts "
                                  "of four ranks, one of three)");
    const std::int64_t hosts = many ? many->first : 1;
    WEFT_REQUIRE(
        static_cast<std::int64_t>(sizes.size()) + hosts <= Topology::kMaxWorld,
        "--hosts " + text + ": more than " + std::to_string(Topology::kMaxWorld) + " hosts");
    sizes.insert(sizes.end(), static_cast<std::size_t>(hosts), many ? many->second : *one);
  }
  WEFT_REQUIRE(!sizes.empty() && text.back() != ',',
               "--hosts " + text + ": expected the ranks of each, such as 4,4,3 or 2x4,3");
  return sizes;
}

schedule::Request request_of(const ScheduleChoice& choice, Algorithm algorithm) {
  constexpr int kRanks = 8;  // default if no option gives the number
  schedule::Request q{.collective = schedule::parse_collective(choice.collective),
                      .algorithm = algorithm,
                      .root = choice.root};
  WEFT_REQUIRE(supports(algorithm, q.collective), std::string(to_string(algorithm)) +
                                                      " cannot do " + choice.collective +
                                                      "; see weft schedule list");
  q.topology = topology_of(choice);
  q.world = choice.ranks.value_or(q.topology ? q.topology->world() : kRanks);
  WEFT_REQUIRE(q.topology == nullptr || q.topology->world() == q.world,
               "--ranks " + std::to_string(q.world) + ", but the topology has " +
                   std::to_string(q.topology->world()));
  WEFT_REQUIRE(
      q.root >= 0 && q.root < q.world,
      "--root " + std::to_string(q.root) + " is not one of " + std::to_string(q.world) + " ranks");
  if (!choice.across.empty()) {
    WEFT_REQUIRE(algorithm == Algorithm::kHierarchical,
                 "--across is for hierarchical, not " + std::string(to_string(algorithm)));
    q.across = schedule::parse_algorithm(choice.across);
    WEFT_REQUIRE(supports(*q.across, q.collective), "--across: " + choice.across + " cannot do " +
                                                        choice.collective +
                                                        "; see weft schedule list");
  }
  if (choice.radix) {
    q.radix = *choice.radix;
    WEFT_REQUIRE(algorithm == Algorithm::kKnomial || q.across == Algorithm::kKnomial,
                 "--radix is for knomial, not " + std::string(to_string(algorithm)));
  }
  WEFT_REQUIRE(
      choice.chunk_bytes % kElementBytes == 0,
      "--chunk: " + std::to_string(choice.chunk_bytes) + " bytes are no whole f32 elements of 4");
  q.chunk = static_cast<std::int64_t>(choice.chunk_bytes) / kElementBytes;
  WEFT_REQUIRE(q.chunk == 0 || is_pipelined(q),
               "--chunk has no effect: " + std::string(to_string(algorithm)) + " does " +
                   choice.collective + " in one piece");
  return q;
}

}  // namespace weft::cli::internal
