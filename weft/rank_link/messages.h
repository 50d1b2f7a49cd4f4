// The messages of ranks, parameter servers and their launcher over a Link, each as a type. One
// without a value is an empty struct.
//
//   tell_launcher(StepsDone{120});                     // "step 120"
//   if (const auto said = decode<RankMessage>(text)) std::visit(Cases{…}, *said);
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "weft/base/text/numbers.h"
#include "weft/rank_link/link.h"
#include "weft/rank_link/usable_ranks.h"

namespace weft::rank_link {

// Kinds of values. text() makes the text of a value; parse() reads it, and returns false for a text
// that is none.
struct NoValue {
  std::string text() const { return ""; }
  bool parse(const std::string&) { return true; }
  bool operator==(const NoValue&) const = default;
};
struct TextValue {
  std::string value;
  std::string text() const { return value; }
  bool parse(const std::string& text) {
    value = text;
    return true;
  }
  bool operator==(const TextValue&) const = default;
};
template <class N>
struct NumberValue {
  N value{};
  std::string text() const {
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
  }
  bool parse(const std::string& text) {
    const auto number = parse_number<N>(text);
    value = number.value_or(value);
    return number.has_value();
  }
  bool operator==(const NumberValue&) const = default;
};
struct NumbersValue {
  std::vector<int> values;
  std::string text() const;
  bool parse(const std::string& text);
  bool operator==(const NumbersValue&) const = default;
};

// From a rank.
struct Joining : NoValue {  // it waits for a group
  static constexpr const char* kVerb = "joining";
};
struct Meeting : NoValue {  // it waits for all ranks of the first group
  static constexpr const char* kVerb = "meeting";
};
struct Joined : NoValue {  // it is in a group
  static constexpr const char* kVerb = "joined";
};
struct Refused : NoValue {  // it is in a group, which it does not fit
  static constexpr const char* kVerb = "refused";
};
struct Leaving : NoValue {  // it ends, since the job shrinks
  static constexpr const char* kVerb = "leaving";
};
struct Ready : NoValue {  // a spare can take a rank
  static constexpr const char* kVerb = "ready";
};
struct Copied : NoValue {  // its state has been copied once, so there is one to hand on
  static constexpr const char* kVerb = "copied";
};
struct Unsaved : NoValue {  // the last checkpoint could not be written
  static constexpr const char* kVerb = "unsaved";
};
struct RunFolder : TextValue {  // the job's run folder
  static constexpr const char* kVerb = "folder";
};
struct RunBegun : TextValue {  // the job trains, with this run folder
  static constexpr const char* kVerb = "run";
};
struct CheckpointSaved : TextValue {  // a checkpoint is complete in this folder
  static constexpr const char* kVerb = "saved";
};
struct Stopping {  // it shall stop: by a signal, or because its should_stop said so
  static constexpr const char* kVerb = "stopping";
  bool by_signal = false;
  std::string text() const { return by_signal ? "signal" : "should_stop"; }
  bool parse(const std::string& text) {
    by_signal = text == "signal";
    return by_signal || text == "should_stop";
  }
  bool operator==(const Stopping&) const = default;
};
struct GroupSize : NumberValue<int> {  // the group has so many ranks
  static constexpr const char* kVerb = "size";
};
struct StepsDone : NumberValue<std::int64_t> {  // optimizer steps, about once a second
  static constexpr const char* kVerb = "step";
};
struct Throughput : NumberValue<double> {  // samples per second of the whole job
  static constexpr const char* kVerb = "rate";
};
struct Usable {  // the numbers of ranks that the program can use
  static constexpr const char* kVerb = "multiple";
  UsableRanks ranks;
  std::string text() const { return to_text(ranks); }
  bool parse(const std::string& text) {
    ranks = usable_ranks_of(text);
    return true;
  }
  bool operator==(const Usable&) const = default;
};
using RankMessage =
    std::variant<Joining, Meeting, Joined, Refused, Leaving, Ready, Copied, Unsaved, RunFolder,
                 RunBegun, CheckpointSaved, Stopping, GroupSize, StepsDone, Throughput, Usable>;

// From a parameter server.
struct Serving : NoValue {  // it serves its shards
  static constexpr const char* kVerb = "serving";
};
struct Replicated : NoValue {  // all of its shards have two copies
  static constexpr const char* kVerb = "replicated";
};
struct Alone : NoValue {  // some shard has one copy
  static constexpr const char* kVerb = "alone";
};
struct ShardLost : NumberValue<int> {  // no copy of this shard is left
  static constexpr const char* kVerb = "lost";
};
using ServerMessage = std::variant<Serving, Replicated, Alone, ShardLost>;

// From the launcher to a rank.
struct RanksWanted {  // the job shall have so many ranks; these wait to be added
  static constexpr const char* kVerb = "ranks";
  int number = 0;
  std::vector<int> newcomers;
  std::string text() const;
  bool parse(const std::string& text);
  bool operator==(const RanksWanted&) const = default;
};
struct RanksLost : NumbersValue {  // the node of these ranks is lost
  static constexpr const char* kVerb = "lost";
};
struct BecomeRank : TextValue {  // a spare takes this environment (spare.h)
  static constexpr const char* kVerb = "become";
};
using LauncherMessage = std::variant<RanksWanted, RanksLost, BecomeRank>;

// For std::visit: one function for each alternative.
template <class... Functions>
struct Cases : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Cases(Functions...) -> Cases<Functions...>;

// The message that a text is. nullopt: it is of another protocol, or its value is none.
template <class Variant, std::size_t Alternative = 0>
std::optional<Variant> decode(const Message& text) {
  if constexpr (Alternative == std::variant_size_v<Variant>) {
    return std::nullopt;
  } else {
    std::variant_alternative_t<Alternative, Variant> message;
    if (text.verb != message.kVerb) return decode<Variant, Alternative + 1>(text);
    return message.parse(text.value) ? std::optional<Variant>(std::move(message)) : std::nullopt;
  }
}

template <class M>
Message encode(const M& message) {
  return {M::kVerb, message.text()};
}

// As Link::tell() and tell_launcher(), which send texts.
template <class M>
bool tell(Link& link, const M& message) noexcept {
  return link.tell(M::kVerb, message.text());
}
template <class M>
void tell_launcher(const M& message) noexcept {
  if (Link* const link = launcher()) tell(*link, message);
}

}  // namespace weft::rank_link
