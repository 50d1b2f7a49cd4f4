#include "weft/plan/mesh/mesh.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

constexpr std::array kAxes = {"dp", "fsdp", "tp", "cp", "ep", "pp"};
constexpr const char* kAuto = "auto";

bool is_axis(std::string_view name) {
  return std::find(kAxes.begin(), kAxes.end(), name) != kAxes.end();
}

std::string unknown(std::string_view name) {
  const auto near = nearest(name, {kAxes.begin(), kAxes.end()});
  return "there is no axis '" + std::string(name) + "'" +
         (near ? "; did you mean " + *near + "?" : "; there are dp, fsdp, tp, cp, ep and pp");
}

std::string text_of(const std::vector<Axis>& axes, const char* between, const char* equals) {
  std::string text;
  for (const Axis& axis : axes)
    text += (text.empty() ? "" : between) + axis.name + equals + std::to_string(axis.size);
  return text;
}

// Finds the sizes whose product is the world and that are nearest to those wanted, by the ratios of
// the sizes. search() tries all sizes of the axes from `at` on.
struct Nearest {
  const std::vector<Axis>& wanted;
  std::vector<Axis> tried, best;
  double best_distance = std::numeric_limits<double>::infinity();

  void search(std::size_t at, int left, double distance) {
    if (distance >= best_distance) return;
    if (at == wanted.size()) {
      if (left != 1) return;
      best = tried;
      best_distance = distance;
      return;
    }
    for (int size = 1; size <= left; ++size) {
      if (left % size != 0) continue;
      tried[at].size = size;
      search(at + 1, left / size,
             distance + std::abs(std::log(static_cast<double>(size) / wanted[at].size)));
    }
  }
};

void require_rank(int rank, int world) {
  WEFT_REQUIRE(rank >= 0 && rank < world, "rank " + std::to_string(rank) + " is not in the mesh");
}

[[noreturn]] void refuse(int world, const std::vector<Axis>& axes, long long product) {
  if (axes.empty())
    throw Error(Errc::kBadConfig,
                "a mesh of " + counted(world, "rank") +
                    " needs at least one axis; write dp=" + std::to_string(world));
  Nearest nearest{axes, axes, {}};
  nearest.search(0, world, 0);
  throw Error(Errc::kBadConfig, text_of(axes, ",", "=") + " makes " + counted(product, "rank") +
                                    " and there are " + std::to_string(world) +
                                    "; nearest: " + text_of(nearest.best, ",", "="));
}

}  // namespace

MeshLayout::MeshLayout(int world, std::vector<Axis> axes) : world_(world), axes_(std::move(axes)) {
  WEFT_REQUIRE(world >= 1, "a mesh needs at least one rank");
  long long product = 1;
  Axis* rest = nullptr;
  for (Axis& axis : axes_) {
    if (!is_axis(axis.name)) throw Error(Errc::kBadConfig, unknown(axis.name));
    if (find(axis.name) != &axis)
      throw Error(Errc::kBadConfig, "the axis " + axis.name + " comes twice");
    if (axis.size < 0 || axis.size > 1'000'000)
      throw Error(Errc::kBadConfig,
                  "the axis " + axis.name + " cannot have size " + std::to_string(axis.size));
    if (axis.size == 0 && rest != nullptr)
      throw Error(Errc::kBadConfig,
                  "only one axis can take what is left: give " + axis.name + " a size");
    if (axis.size == 0) {
      rest = &axis;
    } else {
      product *= axis.size;
    }
    if (product > 1'000'000'000)
      throw Error(Errc::kBadConfig, text_of(axes_, ",", "=") + " makes too many ranks");
  }
  if (rest != nullptr) {
    rest->size = static_cast<int>(std::max<long long>(1, world / product));
    product *= rest->size;
  }
  if (product != world) refuse(world, axes_, product);
}

const Axis* MeshLayout::find(std::string_view axis) const {
  const auto found =
      std::find_if(axes_.begin(), axes_.end(), [&](const Axis& one) { return one.name == axis; });
  return found == axes_.end() ? nullptr : &*found;
}

int MeshLayout::stride(const Axis& axis) const {
  const Axis* const end = axes_.data() + axes_.size();
  int stride = 1;
  for (const Axis* later = &axis + 1; later < end; ++later) stride *= later->size;
  return stride;
}

int MeshLayout::size(std::string_view axis) const {
  WEFT_REQUIRE(is_axis(axis), unknown(axis));
  const Axis* const found = find(axis);
  return found != nullptr ? found->size : 1;
}

int MeshLayout::coordinate(int rank, std::string_view axis) const {
  require_rank(rank, world_);
  if (size(axis) == 1) return 0;
  const Axis* const found = find(axis);
  return rank / stride(*found) % found->size;
}

std::vector<int> MeshLayout::members(int rank, const std::vector<std::string>& along) const {
  for (const std::string& axis : along) WEFT_REQUIRE(is_axis(axis), unknown(axis));
  std::vector<std::string> in_order;
  for (const Axis& axis : axes_) {
    if (std::find(along.begin(), along.end(), axis.name) != along.end())
      in_order.push_back(axis.name);
  }
  return members_in_order(rank, in_order);
}

std::vector<int> MeshLayout::members_in_order(int rank,
                                              const std::vector<std::string>& along) const {
  require_rank(rank, world_);
  std::vector<int> ranks = {rank};
  for (const std::string& name : along) {
    if (size(name) == 1) continue;
    const Axis& axis = *find(name);
    const std::vector<int> before = std::exchange(ranks, {});
    const int step = stride(axis), own = rank / step % axis.size;
    for (const int other : before)
      for (int i = 0; i < axis.size; ++i) ranks.push_back(other + (i - own) * step);
  }
  return ranks;
}

std::vector<std::vector<int>> MeshLayout::groups(const std::string& axis) const {
  const int count = size(axis);
  const Axis* const found = find(axis);
  const int step = found != nullptr ? stride(*found) : 1;
  std::vector<std::vector<int>> all;
  for (int first = 0; first < world_; ++first) {
    if (first / step % count != 0) continue;
    std::vector<int>& group = all.emplace_back();
    for (int i = 0; i < count; ++i) group.push_back(first + i * step);
  }
  return all;
}

std::string MeshLayout::describe() const {
  return axes_.empty() ? "one rank" : text_of(axes_, " x ", " ");
}

std::vector<Axis> parse_axes(std::string_view text) {
  std::vector<Axis> axes;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const auto equals = one.find('=');
    Axis axis{std::string(one.substr(0, equals)), 0};
    const std::string_view number =
        equals == std::string_view::npos ? std::string_view() : one.substr(equals + 1);
    const auto size = parse_number<int>(number);
    if (!size)
      throw Error(Errc::kBadConfig,
                  "'" + std::string(one) + "' is no axis with a size; write dp=2,tp=2");
    axis.size = *size;
    if (!is_axis(axis.name)) throw Error(Errc::kBadConfig, unknown(axis.name));
    axes.push_back(std::move(axis));
  }
  if (axes.empty())
    throw Error(Errc::kBadConfig, "a mesh needs at least one axis; write dp=2,tp=2");
  return axes;
}

std::string to_text(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis& axis : axes)
    text += (text.empty() ? "" : ",") + axis.name + "=" + std::to_string(axis.size);
  return text;
}

MeshSpec::MeshSpec(const std::string& text)
    : axes_(text == kAuto ? std::vector<Axis>() : parse_axes(text)) {}

MeshSpec::MeshSpec(std::vector<Axis> axes) : axes_(std::move(axes)) {
  WEFT_REQUIRE(!axes_.empty(), "a mesh needs at least one axis; write dp=2,tp=2");
}

const std::vector<Axis>& MeshSpec::axes() const {
  WEFT_REQUIRE(!is_auto(), "the mesh \"auto\" has no axes until the run has chosen them");
  return axes_;
}

std::string MeshSpec::text() const { return is_auto() ? kAuto : to_text(axes_); }

int fixed_size(const std::vector<Axis>& axes) {
  const bool one_takes_the_rest =
      std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size == 0; });
  int size = 1;
  for (const Axis& axis : axes) {
    const bool changes = !one_takes_the_rest && (axis.name == "dp" || axis.name == "fsdp");
    if (axis.size > 0 && !changes) size *= axis.size;
  }
  return size;
}

std::vector<Axis> refit(std::vector<Axis> axes, int world) {
  const auto find = [&](std::string_view name) {
    return std::find_if(axes.begin(), axes.end(),
                        [&](const Axis& axis) { return axis.name == name; });
  };
  for (const Axis& axis : axes) {
    if (axis.size == 0) return axes;  // it takes what is left
  }
  const int others = fixed_size(axes);
  if (world % others != 0) {
    throw Error(Errc::kBadConfig, "the mesh \"" + to_text(axes) + "\" does not fit " +
                                      counted(world, "rank") +
                                      ": the axes other than dp and fsdp take " +
                                      counted(others, "rank") + " together");
  }
  const int replicas = world / others;
  const auto sharded = find("fsdp");
  int shards = sharded == axes.end() ? 1 : std::min(sharded->size, replicas);
  while (replicas % shards != 0) --shards;
  if (sharded != axes.end()) sharded->size = shards;
  if (find("dp") == axes.end()) axes.push_back({"dp", 1});
  find("dp")->size = replicas / shards;
  return axes;
}

}  // namespace weft::plan
