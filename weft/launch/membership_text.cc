// Reports of nodes and memberships as text: JSON, since people read them when they look for a
// fault.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "weft/base/error.h"
#include "weft/base/json/json_fields.h"
#include "weft/launch/membership.h"

namespace weft::launch {

void from_json(const nlohmann::json& number, RankPhase& phase) {
  const int value = number.get<int>();
  if (value < 0 || value > static_cast<int>(RankPhase::kDone))
    throw std::out_of_range("phase " + std::to_string(value));
  phase = static_cast<RankPhase>(value);
}

template <class Visit>
void each_field(RankReport& o, Visit&& visit) {
  visit("phase", o.phase);
  visit("incarnation", o.incarnation);
  visit("why", o.why);
  visit("code", o.code);
}
template <class Visit>
void each_field(SizeRequest& o, Visit&& visit) {
  visit("serial", o.serial);
  visit("ranks", o.ranks);
}
template <class Visit>
void each_field(StopRequest& o, Visit&& visit) {
  visit("why", o.why);
  visit("code", o.code);
  visit("grace_ms", o.grace_ms);
}
template <class Visit>
void each_field(SavedCheckpoint& o, Visit&& visit) {
  visit("serial", o.serial);
  visit("folder", o.folder);
}
template <class Visit>
void each_field(Placement& o, Visit&& visit) {
  visit("node", o.node);
  visit("incarnation", o.incarnation);
  visit("first", o.first);
  visit("member", o.member);
  visit("replaces", o.replaces);
  visit("tries", o.tries);
}
template <class Visit>
void each_field(Announcement& o, Visit&& visit) {
  visit("number", o.number);
  visit("ranks", o.ranks);
  visit("newcomers", o.newcomers);
}
template <class Visit>
void each_field(NodeReport& o, Visit&& visit) {
  visit("node", o.node);
  visit("host", o.host);
  visit("slots", o.slots);
  visit("failures", o.failures);
  visit("ranks", o.ranks);
  visit("wanted", o.wanted);
  visit("run", o.run);
  visit("usable", o.usable);
  visit("saved", o.saved);
  visit("stop", o.stop);
  visit("leave", o.leave);
  visit("replicated", o.replicated);
  visit("servers_lost", o.servers_lost);
  visit("starts_fail", o.starts_fail);
  visit("holds_store", o.holds_store);
  visit("left", o.left);
  visit("knows_all_left", o.knows_all_left);
}
template <class Visit>
void each_field(Membership& o, Visit&& visit) {
  visit("policy", o.policy);
  visit("formed", o.formed);
  visit("attempt", o.attempt);
  visit("restores", o.restores);
  visit("wanted", o.wanted);
  visit("replacements", o.replacements);
  visit("never_joined", o.never_joined);
  visit("incarnations", o.incarnations);
  visit("ranks", o.ranks);
  visit("gone", o.gone);
  visit("aside", o.aside);
  visit("leaving", o.leaving);
  visit("successors", o.successors);
  visit("servers", o.servers);
  visit("announcement", o.announcement);
  visit("usable", o.usable);
  visit("run", o.run);
  visit("saved", o.saved);
  visit("saved_before", o.saved_before);
  visit("notes", o.notes);
  visit("done", o.done);
  visit("end", o.end);
  visit("end_code", o.end_code);
  visit("stop", o.stop);
  visit("stop_node", o.stop_node);
}

namespace {

using nlohmann::json;

// Texts of programs may contain anything.
std::string dump(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

void check_usable(const std::optional<rank_link::UsableRanks>& usable) {
  if (!usable) return;
  if (usable->multiple < 1) throw std::out_of_range("multiple " + std::to_string(usable->multiple));
  if (usable->shards < 0 || (usable->shards & (usable->shards - 1)) != 0)
    throw std::out_of_range("shards " + std::to_string(usable->shards));
  if (usable->replicas < 0) throw std::out_of_range("replicas " + std::to_string(usable->replicas));
}

template <class Struct>
Struct read(const std::string& text, const char* what) {
  try {
    auto value = fields_from_json<Struct>(json::parse(text));
    check_usable(value.usable);
    return value;
  } catch (const std::exception& error) {
    throw Error(Errc::kCorrupt,
                std::string("the store holds an unreadable ") + what + ": " + error.what());
  }
}

}  // namespace

std::size_t longest_reason(std::size_t ranks) {
  constexpr std::size_t kOfAll = 32 << 10, kOfOne = 400;
  return std::min(kOfOne, kOfAll / std::max<std::size_t>(ranks, 1));
}

std::string to_text(const NodeReport& report) { return dump(fields_to_json(report)); }

std::string to_text(const Membership& membership) { return dump(fields_to_json(membership)); }

NodeReport node_report_of(const std::string& text) {
  return read<NodeReport>(text, "report of a node");
}

Membership membership_of(const std::string& text) {
  return read<Membership>(text, "plan of the job");
}

std::string to_text(const MembershipPolicy& policy) {
  const auto number = [](int value) { return std::to_string(value); };
  return "--nnodes " + number(policy.min_nodes) + ":" + number(policy.max_nodes) + ", at most " +
         number(policy.max_ranks) + " ranks, --min-ranks " + number(policy.min_ranks) +
         ", --max-replacements " + number(policy.max_replacements) +
         (policy.servers > 0 ? ", --servers " + number(policy.servers) : "") +
         (policy.servers > 1 && !policy.server_backup ? " --no-server-backup" : "");
}

}  // namespace weft::launch
