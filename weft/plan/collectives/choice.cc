#include "weft/plan/collectives/choice.h"

#include <algorithm>
#include <bit>
#include <string>

#include "weft/base/error.h"

namespace weft::plan {
namespace {

using schedule::Algorithm;

// More blocks cost more to plan and to run than they can gain.
constexpr std::int64_t kMaxBlocks = 256;

// Transport::kDirect runs only the direct schedules. Transports with messages run all others.
bool runs_on(Transport transport, Algorithm algorithm) {
  return (transport == Transport::kDirect) == (algorithm == Algorithm::kDirect);
}

// Class of a size (a quarter of a power of two), and a size in the middle of a class.
int class_of(std::int64_t bytes) {
  if (bytes < 4) return static_cast<int>(bytes);
  const int exponent = std::bit_width(static_cast<std::uint64_t>(bytes)) - 1;
  return 4 * (exponent - 1) + static_cast<int>((bytes >> (exponent - 2)) & 3);
}
std::int64_t middle_of(int size_class) {
  if (size_class < 8) return size_class;
  const int shift = size_class / 4 - 1;
  return (std::int64_t{4 + size_class % 4} << shift) + (std::int64_t{1} << shift) / 2;
}

// Packs a candidate into 64 bits. A chunk is a power of two, so bits 16 to 23 hold only its bit
// width.
std::uint64_t pack(const Candidate& candidate) {
  const auto seconds = std::bit_cast<std::uint32_t>(static_cast<float>(candidate.seconds));
  const auto chunk =
      static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(candidate.chunk)));
  return (std::uint64_t{seconds} << 32) | (chunk << 16) | (candidate.measured ? 1U << 8 : 0U) |
         (static_cast<unsigned>(candidate.algorithm) + 1);
}
Candidate unpack(std::uint64_t packed) {
  const auto chunk = static_cast<int>((packed >> 16) & 0xFF);
  return {.algorithm = static_cast<Algorithm>((packed & 0xFF) - 1),
          .seconds = std::bit_cast<float>(static_cast<std::uint32_t>(packed >> 32)),
          .measured = (packed & (1U << 8)) != 0,
          .chunk = chunk > 0 ? std::int64_t{1} << (chunk - 1) : 0};
}

bool same_way(const Measured& one, const schedule::Request& request, std::size_t element) {
  return one.collective == request.collective && one.algorithm == request.algorithm &&
         one.chunk == request.chunk * static_cast<std::int64_t>(element);
}

const Curve* measured_curve(const TransportCost& cost, const schedule::Request& request,
                            std::size_t element) {
  for (const Measured& one : cost.measured) {
    if (same_way(one, request, element) && one.world == request.world) return &one.seconds;
  }
  return nullptr;
}

// Factor by which the model must be multiplied, taken from the nearest measured world. If two are
// equally near, the one that the table lists first counts.
double correction(const schedule::Request& request, std::size_t element,
                  const TransportCost& cost) {
  const Measured* nearest = nullptr;
  const auto distance = [&](const Measured& one) { return std::abs(one.world - request.world); };
  for (const Measured& one : cost.measured) {
    if (!same_way(one, request, element)) continue;
    if (nearest == nullptr || distance(one) < distance(*nearest)) nearest = &one;
  }
  if (nearest == nullptr) return 1;
  schedule::Request there = request;
  there.world = nearest->world;
  there.topology = nullptr;  // it belongs to another world
  there.root = 0;
  const double modeled = model(there, element, cost);
  return modeled > 0 ? nearest->seconds.at(static_cast<double>(payload(there, element))) / modeled
                     : 1;
}

}  // namespace

std::span<const std::int64_t> chunks_of(Algorithm algorithm) {
  static constexpr std::int64_t kChunks[] = {0, 64 << 10, 256 << 10, 1 << 20};
  const bool pipelined =
      algorithm == Algorithm::kChain || algorithm == Algorithm::kDoubleBinaryTree;
  return {kChunks, pipelined ? std::size(kChunks) : 1};
}

double predict(const schedule::Request& request, std::size_t element, const CostTable& table,
               Transport transport) {
  const TransportCost& cost = table.of(transport);
  if (const Curve* curve = measured_curve(cost, request, element))
    return curve->at(static_cast<double>(payload(request, element)));
  return model(request, element, cost) * correction(request, element, cost);
}

Planner::Planner(CostTable table, Place place)
    : table_(std::move(table)),
      place_(place),
      cache_(std::make_unique<std::array<std::atomic<std::uint64_t>, kCollectives * kClasses>>()) {
  WEFT_REQUIRE(place.world >= 1, "plan: the world has " + std::to_string(place.world) +
                                     " ranks; it must have at least one");
}

std::vector<Candidate> Planner::candidates(const Question& question) const {
  std::vector<Candidate> all;
  for (const Algorithm algorithm : schedule::algorithms()) {
    if (!runs_on(place_.transport, algorithm) ||
        !schedule::supports(algorithm, question.collective))
      continue;
    schedule::Request request{.collective = question.collective,
                              .algorithm = algorithm,
                              .world = place_.world,
                              .count = question.count};
    const auto element = static_cast<std::int64_t>(question.element);
    for (const std::int64_t chunk : chunks_of(algorithm)) {
      const std::int64_t bytes = payload(request, question.element);
      if (chunk > 0 && (bytes <= chunk || bytes / chunk > kMaxBlocks)) continue;
      request.chunk = chunk / element;
      const bool measured =
          measured_curve(table_.of(place_.transport), request, question.element) != nullptr;
      all.push_back({algorithm, predict(request, question.element, table_, place_.transport),
                     measured, chunk});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  return all;
}

Candidate Planner::choose(const Question& question) const {
  WEFT_REQUIRE(
      question.count >= 0 && question.element > 0,
      "plan: the count must not be negative, and the element size must be at least one byte");
  const schedule::Request request{
      .collective = question.collective, .world = place_.world, .count = question.count};
  const std::int64_t bytes = payload(request, question.element);
  const int size_class = class_of(bytes);
  auto& cached = (*cache_)[static_cast<std::size_t>(question.collective) * kClasses +
                           static_cast<std::size_t>(size_class)];
  if (const std::uint64_t packed = cached.load(std::memory_order_relaxed); packed != 0)
    return unpack(packed);
  // Plans with elements of four bytes in all cases, so that the answer depends only on the class.
  constexpr int kElement = 4;
  const std::int64_t held = std::max<std::int64_t>(
      1, bytes / std::max<std::int64_t>(1, question.count * std::int64_t(question.element)));
  const std::int64_t count =
      std::max<std::int64_t>(bytes > 0, middle_of(size_class) / held / kElement);
  const Candidate best = candidates({question.collective, count, kElement}).front();
  cached.store(pack(best), std::memory_order_relaxed);
  return best;
}

}  // namespace weft::plan
