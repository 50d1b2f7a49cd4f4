#include "weft/plan/step/layout.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

constexpr int kMaxRanks = 1'000'000;

void check_axis(const char* name, int size) {
  WEFT_REQUIRE(size >= 1 && size <= kMaxRanks,
               std::string(name) + " = " + std::to_string(size) + "; an axis has at least 1 rank");
}

std::string axes_text(const Layout& l) {
  std::string text;
  for (const Axis& axis : axes_of(l))
    if (axis.size > 1)
      text += (text.empty() ? "" : " x ") + axis.name + " " + std::to_string(axis.size);
  return text.empty() ? "1 rank" : text;
}

// What to say where the axes do not multiply to the world.
std::string nearest_axes(const Layout& l, int world) {
  const int others = l.tp * l.pp * l.cp * l.ep * l.fsdp;
  if (world % others == 0) return "use dp = " + std::to_string(world / others);
  return "use " + std::to_string((world / others + 1) * others) +
         " ranks, or fewer of tp, pp, cp, "
         "ep and fsdp";
}

}  // namespace

const char* to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone: return "none";
    case Recompute::kSelective: return "selective";
    case Recompute::kFull: return "full";
  }
  return "none";
}

Recompute parse_recompute(std::string_view name) {
  if (name == "none" || name == "0" || name == "false" || name == "no" || name.empty())
    return Recompute::kNone;
  if (name.substr(0, 9) == "selective") return Recompute::kSelective;
  if (name.substr(0, 4) == "full" || name == "1" || name == "true" || name == "yes")
    return Recompute::kFull;
  const auto near = nearest(name, {"none", "selective", "full"});
  throw Error(Errc::kInvalidArgument,
              "recompute \"" + std::string(name.substr(0, 40)) + "\" is not known; " +
                  (near ? "did you mean " + *near + "?" : "use none, selective or full"));
}

namespace {

struct KnownRule {
  const char* name;
  int arrays;
};
// weft/strategy/internal has a file for each: its memory is the anchor or center, and the momentum.
constexpr KnownRule kRules[] = {
    {"sync", 0}, {"local_sgd", 1}, {"slow_momentum", 3}, {"diloco", 3}, {"easgd", 2}};

const KnownRule& known_rule(const std::string& name) {
  for (const KnownRule& rule : kRules)
    if (name == rule.name) return rule;
  throw Error(Errc::kInvalidArgument,
              "strategy \"" + name.substr(0, 40) +
                  "\" cannot be planned; use sync, local_sgd, slow_momentum, diloco or easgd");
}

}  // namespace

std::string to_string(const Rule& rule) {
  return rule.is_sync() ? rule.name : rule.name + ":" + std::to_string(rule.period);
}

Rule parse_rule(const std::string& text) {
  Rule rule;
  rule.name = text.substr(0, text.find(':'));
  known_rule(rule.name);
  if (text == "sync") return rule;
  rule.period =
      parse_number<int>(text.substr(std::min(text.size(), rule.name.size() + 1))).value_or(0);
  WEFT_REQUIRE(!rule.is_sync() && rule.period >= 1,
               "strategy \"" + text.substr(0, 40) +
                   "\": give the steps between exchanges, as in local_sgd:16; sync has none");
  return rule;
}

int arrays_of(const Rule& rule) { return known_rule(rule.name).arrays; }

int world_of(const Layout& l) { return l.dp * l.fsdp * l.tp * l.pp * l.cp * l.ep; }

int replicas_of(const Layout& l) { return l.dp * l.fsdp * l.ep; }

int micro_batches_of(const Layout& l) {
  const std::int64_t samples = static_cast<std::int64_t>(l.micro_batch) * replicas_of(l);
  return static_cast<int>(std::max<std::int64_t>(1, (l.global_batch + samples - 1) / samples));
}

std::vector<Axis> axes_of(const Layout& l) {
  return {{"pp", l.pp}, {"dp", l.dp}, {"fsdp", l.fsdp}, {"ep", l.ep}, {"cp", l.cp}, {"tp", l.tp}};
}

std::string describe(const Layout& l) {
  std::string text = axes_text(l);
  if (l.pp > 1) {
    text += std::string(", ") + to_string(l.schedule);
    if (l.virtual_stages > 1)
      text += " with " + std::to_string(l.virtual_stages) + " stages a rank";
  }
  text += ", micro-batch " + std::to_string(l.micro_batch);
  if (l.zero_stage > 0) text += ", ZeRO-" + std::to_string(l.zero_stage);
  if (l.sequence_parallel) text += ", sequence parallel";
  if (l.recompute != Recompute::kNone)
    text += std::string(", ") + to_string(l.recompute) + " recomputation";
  if (!l.rule.is_sync())
    text += ", " + l.rule.name + " every " + std::to_string(l.rule.period) + " steps";
  if (l.codec != "none") text += ", codec " + l.codec;
  return text;
}

double codec_ratio(const std::string& codec) {
  if (codec.empty() || codec == "none" || codec == "auto") return 1;
  const std::string name = codec.substr(0, codec.find_first_of(":,"));
  double parameter = 0;
  if (name.size() < codec.size() && codec[name.size()] == ':') {
    const char* first = codec.data() + name.size() + 1;
    std::from_chars(first, codec.data() + codec.size(), parameter);
  }
  if (name == "bf16" || name == "f16" || name == "fp16") return 0.5;
  if (name == "int8") return 0.25 + (parameter > 0 ? 1 / parameter : 1.0 / 64);
  if (name == "int4") return 0.125 + (parameter > 0 ? 1 / parameter : 1.0 / 64);
  if (name == "sign" || name == "onebit" || name == "signsgd" || name == "1bit")
    return 1.0 / 32 + (parameter > 0 ? 1 / parameter : 1.0 / 1024);
  if (name == "topk") return 2 * (parameter > 0 ? parameter : 0.01);
  if (name == "randomk") return parameter > 0 ? parameter : 0.01;
  if (name == "powersgd") return 0.01 * (parameter > 0 ? parameter : 4);
  WEFT_REQUIRE(name != "threshold",
               "codec \"" + codec.substr(0, 40) +
                   "\" cannot be planned: its bytes depend on the gradients; plan with topk and "
                   "the share of the numbers that it keeps, such as topk:0.01");
  throw Error(Errc::kInvalidArgument,
              "codec \"" + codec.substr(0, 40) +
                  "\" is not known; use none, bf16, f16, int8, int4, sign, topk:0.01, "
                  "randomk:0.01 or powersgd:4");
}

void check(const Layout& l, int world) {
  for (const Axis& axis : axes_of(l)) check_axis(axis.name.c_str(), axis.size);
  double product = 1;
  for (const Axis& axis : axes_of(l)) product *= axis.size;
  WEFT_REQUIRE(product <= kMaxRanks, "the axes have more than a million ranks");
  WEFT_REQUIRE(world_of(l) == world, "the axes (" + axes_text(l) + ") have " +
                                         counted(world_of(l), "rank") + ", but the cluster has " +
                                         std::to_string(world) + "; " + nearest_axes(l, world));
  WEFT_REQUIRE(l.zero_stage >= 0 && l.zero_stage <= 3,
               "zero_stage = " + std::to_string(l.zero_stage) + "; use 0, 1, 2 or 3");
  WEFT_REQUIRE(l.micro_batch >= 1 && l.micro_batch <= 1'000'000,
               "micro_batch = " + std::to_string(l.micro_batch) + "; use at least 1");
  WEFT_REQUIRE(l.global_batch >= 1 && l.global_batch <= 1'000'000'000,
               "global_batch = " + std::to_string(l.global_batch) + "; use at least 1");
  WEFT_REQUIRE(l.global_batch >= replicas_of(l),
               "global_batch = " + std::to_string(l.global_batch) + " is less than the " +
                   std::to_string(replicas_of(l)) +
                   " replicas; use more samples or fewer replicas");
  WEFT_REQUIRE(l.virtual_stages >= 1 && l.virtual_stages <= 1000,
               "virtual_stages = " + std::to_string(l.virtual_stages) + "; use 1 to 1000");
  WEFT_REQUIRE(l.shares.empty() || static_cast<int>(l.shares.size()) == l.dp,
               std::to_string(l.shares.size()) + " batch shares for dp = " + std::to_string(l.dp));
  WEFT_REQUIRE(micro_batches_of(l) <= 1'000'000, "more than a million micro-batches");
  codec_ratio(l.codec);
  if (l.rule.is_sync()) return;
  arrays_of(l.rule);
  WEFT_REQUIRE(l.rule.period >= 1, "a strategy exchanges after 1 step or more");
  WEFT_REQUIRE(l.cp == 1 && l.ep == 1 && (l.zero_stage == 0 || l.fsdp > 1),
               "strategy " + to_string(l.rule) +
                   ": replicas of dp are planned with fsdp, tp and pp inside, without cp and ep");
}

}  // namespace weft::plan
