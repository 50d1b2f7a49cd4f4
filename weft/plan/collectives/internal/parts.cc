#include "weft/plan/collectives/internal/parts.h"

#include <algorithm>
#include <optional>
#include <string>

#include "weft/base/error.h"

namespace weft::plan::internal {
namespace {

using schedule::Action;
using schedule::Request;

constexpr std::int64_t kMaxHeld = 20'000'000, kMaxPossible = 200'000'000;

int wrap(std::int64_t place, int world) {
  return static_cast<int>(((place % world) + world) % world);
}

std::vector<Event> events_of(Request request, int place, int first_of_block, std::size_t element) {
  const schedule::Topology* topology = request.topology.get();
  request.rank = topology != nullptr ? topology->order()[static_cast<std::size_t>(place)] : place;
  std::vector<Event> events;
  for (const auto& step : schedule::make(request).steps) {
    WEFT_REQUIRE(step.action != Action::kMeet && step.action != Action::kRead &&
                     step.action != Action::kReadReduce,
                 "simulate: ranks that read each other's memory send no messages; choose another "
                 "algorithm than direct");
    const double bytes = static_cast<double>(step.count) * static_cast<double>(element);
    if (step.action == Action::kReduce) events.push_back({step.round, -1, bytes, true});
    if (step.action != Action::kRecv && step.action != Action::kRecvReduce) continue;
    const int peer = topology != nullptr ? topology->place_of(step.peer) : step.peer;
    events.push_back({step.round, wrap(peer - first_of_block, request.world), bytes,
                      step.action == Action::kRecvReduce});
  }
  return events;
}

bool alike(const std::vector<Event>& a, const std::vector<Event>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Event& x, const Event& y) {
    return x.round == y.round && x.peer == y.peer && x.bytes == y.bytes && x.reduces == y.reduces;
  });
}

// Returns the parts of the first block of `length` places, if the world consists of such blocks.
// Checks only the second, a middle and the last block.
std::optional<Parts> block_of(const Request& request, int length, std::size_t element) {
  if (length < 1 || request.world % length != 0 || length == request.world) return std::nullopt;
  Parts result;
  const int blocks = request.world / length;
  for (int t = 0; t < length; ++t) {
    result.parts.push_back(events_of(request, t, 0, element));
    for (const int block : {1, blocks / 2, blocks - 1}) {
      if (!alike(result.parts.back(),
                 events_of(request, block * length + t, block * length, element)))
        return std::nullopt;
    }
  }
  result.by_symmetry = true;
  return result;
}

std::vector<int> lengths_to_try(const schedule::Topology* topology) {
  std::vector<int> lengths = {1};
  for (int level = topology != nullptr ? topology->num_levels() - 1 : 0; level > 0; --level) {
    const int length = static_cast<int>(topology->members(level, 0).size());
    bool equal = true;
    for (int group = 0; group < topology->num_groups(level); ++group) {
      equal &= static_cast<int>(topology->members(level, group).size()) == length;
    }
    if (equal) lengths.push_back(length);
  }
  return lengths;
}

Parts all_ranks(const Request& request, std::size_t element) {
  Parts result;
  for (int place = 0; place < request.world; ++place)
    result.parts.push_back(events_of(request, place, 0, element));
  return result;
}

Parts find(const Request& request, std::size_t element) {
  std::int64_t steps = 0;  // of all ranks, estimated from some of them
  for (const int place : {0, 1, request.world / 2, request.world - 1}) {
    const auto events = static_cast<std::int64_t>(
        events_of(request, std::min(place, request.world - 1), 0, element).size());
    steps = std::max(steps, events * request.world);
  }
  Parts result;
  if (steps <= kMaxHeld) {
    result = all_ranks(request, element);
    result.count = request.count;
    return result;
  }
  Request full = request;
  full.count = (request.count + request.world - 1) / request.world * request.world;
  for (const int length : lengths_to_try(request.topology.get())) {
    if (auto block = block_of(full, length, element)) {
      block->count = full.count;
      return *std::move(block);
    }
  }
  WEFT_REQUIRE(steps <= kMaxPossible, "simulate: " + std::to_string(steps) +
                                          " steps and ranks that are not alike: too many to hold");
  result = all_ranks(request, element);
  result.count = request.count;
  return result;
}

}  // namespace

Parts parts_of(const Request& request, std::size_t element) {
  Parts result = find(request, element);
  for (const auto& part : result.parts) {
    if (!part.empty()) result.rounds = std::max(result.rounds, part.back().round);
  }
  return result;
}

}  // namespace weft::plan::internal
