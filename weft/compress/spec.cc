#include "weft/compress/spec.h"

#include <charconv>
#include <optional>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"

namespace weft::compress {
namespace {

struct Row {
  Kind kind;
  const char* name;
  const char* amount;  // meaning of the number after the colon; null: there is none
  double standard;     // 0: the number is required
  double min, max;
  bool whole;
  bool feedback;         // by default
  bool momentum_before;  // by default, with feedback
};

constexpr Row kRows[] = {
    {Kind::kNone, "none", nullptr, 0, 0, 0, false, false, false},
    {Kind::kBf16, "bf16", nullptr, 0, 0, 0, false, false, false},
    {Kind::kF16, "f16", nullptr, 0, 0, 0, false, false, false},
    {Kind::kInt8, "int8", "numbers a block", 64, 8, 1 << 20, true, true, false},
    {Kind::kInt4, "int4", "numbers a block", 64, 8, 1 << 20, true, true, false},
    {Kind::kSign, "sign", "numbers a block", 1024, 8, 1 << 20, true, true, true},
    {Kind::kTopK, "topk", "share of the numbers", 0.01, 1e-6, 0.5, false, true, false},
    {Kind::kRandomK, "randomk", "share of the numbers", 0.01, 1e-6, 0.5, false, true, true},
    {Kind::kThreshold, "threshold", "magnitude", 0, 1e-30, 1e30, false, true, false},
    {Kind::kPowerSgd, "powersgd", "rank", 4, 1, 256, true, true, false},
    {Kind::kAuto, "auto", nullptr, 0, 0, 0, false, false, false},
};

const Row& row_of(Kind kind) { return kRows[static_cast<int>(kind)]; }

bool usual_momentum(const Spec& spec) {
  return row_of(spec.kind).momentum_before && spec.memory == Memory::kFeedback;
}

[[noreturn]] void fail(const std::string& text, const std::string& why) {
  throw Error(Errc::kInvalidArgument, "codec \"" + text + "\": " + why);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(',', begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

std::string short_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

const Row& find_row(const std::string& text, const std::string& name) {
  std::vector<std::string> names;
  for (const Row& row : kRows) {
    if (name == row.name) return row;
    names.emplace_back(row.name);
  }
  const auto near = nearest(name, names);
  fail(text,
       "there is no codec \"" + name + "\"" +
           (near ? "; did you mean \"" + *near + "\"?" : "; the codecs are " + joined(names)));
}

double parse_amount(const std::string& text, const Row& row, const std::string& amount) {
  if (row.amount == nullptr) fail(text, std::string(row.name) + " takes no number");
  const auto value = parse_number<double>(amount);
  const bool good =
      value && *value >= row.min && *value <= row.max &&
      (!row.whole || *value == static_cast<double>(static_cast<std::int64_t>(*value)));
  if (!good) {
    fail(text, "\"" + amount + "\" is not the " + row.amount + ": a " +
                   (row.whole ? "whole " : "") + "number from " + short_text(row.min) + " to " +
                   short_text(row.max));
  }
  const bool blocks = row.kind == Kind::kInt8 || row.kind == Kind::kInt4 || row.kind == Kind::kSign;
  if (blocks && static_cast<std::int64_t>(*value) % 8 != 0)
    fail(text, "the numbers of a block must be a multiple of 8");
  return *value;
}

void parse_option(const std::string& text, const std::string& option, Spec& spec) {
  const std::size_t equals = option.find('=');
  const std::string key = option.substr(0, equals),
                    value = equals == std::string::npos ? "" : option.substr(equals + 1);
  const bool bare = equals == std::string::npos;
  if (key == "ef" && (value == "on" || value == "off")) {
    if (spec.memory == Memory::kDelta)
      fail(text, "\"delta\" takes the place of error feedback; leave \"ef\" out");
    spec.memory = value == "on" ? Memory::kFeedback : Memory::kNone;
  } else if (key == "delta" && bare) {
    spec.memory = Memory::kDelta;
  } else if (key == "stochastic" && bare) {
    if (spec.kind != Kind::kInt8 && spec.kind != Kind::kInt4)
      fail(text, "only int8 and int4 support stochastic");
    spec.stochastic = true;
  } else if (key == "momentum" && (value == "before" || value == "after")) {
    spec.momentum_before = value == "before";
  } else if (key == "warmup" && parse_number<std::int64_t>(value).value_or(-1) >= 0) {
    spec.warmup = *parse_number<std::int64_t>(value);
  } else if (key == "seed" && parse_number<std::uint64_t>(value)) {
    spec.seed = *parse_number<std::uint64_t>(value);
  } else {
    fail(text, "\"" + option +
                   "\" is not an option; the options are ef=on, ef=off, delta, momentum=before, "
                   "momentum=after, stochastic, warmup=<steps>, seed=<number>");
  }
}

}  // namespace

Spec parse(const std::string& text) {
  const auto parts = split(text);
  const std::size_t colon = parts[0].find(':');
  const Row& row = find_row(text, parts[0].substr(0, colon));
  Spec spec;
  spec.kind = row.kind;
  spec.amount = colon == std::string::npos ? row.standard
                                           : parse_amount(text, row, parts[0].substr(colon + 1));
  if (row.amount != nullptr && spec.amount == 0)
    fail(text,
         std::string(row.name) + " needs the " + row.amount + ", as in \"" + row.name + ":0.001\"");
  if (parts.size() > 1 && (row.kind == Kind::kNone || row.kind == Kind::kAuto))
    fail(text, std::string(row.name) + " takes no options");
  spec.memory = row.feedback ? Memory::kFeedback : Memory::kNone;
  bool said_memory = false, said_momentum = false;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const bool memory = parts[i].rfind("ef=", 0) == 0 || parts[i] == "delta";
    if (memory && said_memory) fail(text, "use one of ef=on, ef=off and delta, once");
    said_memory = said_memory || memory;
    said_momentum = said_momentum || parts[i].rfind("momentum=", 0) == 0;
    parse_option(text, parts[i], spec);
  }
  if (spec.stochastic && !said_memory) spec.memory = Memory::kNone;
  if (!said_momentum) spec.momentum_before = usual_momentum(spec);
  if (spec.momentum_before && spec.memory != Memory::kFeedback)
    fail(text, "\"momentum=before\" needs error feedback; add \"ef=on\"");
  return spec;
}

std::string to_string(const Spec& spec) {
  const Row& row = row_of(spec.kind);
  std::string text = row.name;
  if (spec.kind == Kind::kNone || spec.kind == Kind::kAuto) return text;
  if (row.amount != nullptr) text += ":" + short_text(spec.amount);
  if (spec.stochastic) text += ",stochastic";
  text += spec.memory == Memory::kDelta      ? ",delta"
          : spec.memory == Memory::kFeedback ? ",ef=on"
                                             : ",ef=off";
  if (spec.momentum_before != usual_momentum(spec))
    text += spec.momentum_before ? ",momentum=before" : ",momentum=after";
  if (spec.warmup != 0) text += ",warmup=" + std::to_string(spec.warmup);
  if (spec.seed != 1) text += ",seed=" + std::to_string(spec.seed);
  return text;
}

}  // namespace weft::compress
