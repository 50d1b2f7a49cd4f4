// Reports of nodes and memberships as text: JSON, since people read them when they look for a
// fault.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/launch/membership.h"

namespace weft::launch {
namespace {

using nlohmann::json;

// nlohmann's own form of a map with numbers as keys is a list of pairs, which reads badly.
template <class Value>
json by_number(const std::map<int, Value>& values) {
  json object = json::object();
  for (const auto& [number, value] : values) object[std::to_string(number)] = value;
  return object;
}

template <class Value>
std::map<int, Value> numbered(const json& object) {
  std::map<int, Value> values;
  for (const auto& [key, value] : object.items())
    values.emplace(std::stoi(key), value.template get<Value>());
  return values;
}

template <class Read>
auto read(const std::string& text, const char* what, Read&& read_object) {
  try {
    return read_object(json::parse(text));
  } catch (const std::exception& error) {
    throw Error(Errc::kCorrupt,
                std::string("the store holds an unreadable ") + what + ": " + error.what());
  }
}

json object_of(const rank_link::UsableRanks& usable) {
  return {{"multiple", usable.multiple}, {"shards", usable.shards}, {"replicas", usable.replicas}};
}

rank_link::UsableRanks usable_of(const json& object) {
  const rank_link::UsableRanks usable{.multiple = object.at("multiple").get<int>(),
                                      .shards = object.at("shards").get<int>(),
                                      .replicas = object.at("replicas").get<int>()};
  if (usable.multiple < 1) throw std::out_of_range("multiple " + std::to_string(usable.multiple));
  if (usable.shards < 0 || (usable.shards & (usable.shards - 1)) != 0)
    throw std::out_of_range("shards " + std::to_string(usable.shards));
  if (usable.replicas < 0) throw std::out_of_range("replicas " + std::to_string(usable.replicas));
  return usable;
}

}  // namespace

void to_json(json& object, const RankReport& rank) {
  object = {{"incarnation", rank.incarnation},
            {"phase", static_cast<int>(rank.phase)},
            {"why", rank.why},
            {"code", rank.code}};
}
void from_json(const json& object, RankReport& rank) {
  const int phase = object.at("phase").get<int>();
  if (phase < 0 || phase > static_cast<int>(RankPhase::kDone))
    throw std::out_of_range("phase " + std::to_string(phase));
  rank = {object.at("incarnation").get<int>(), static_cast<RankPhase>(phase),
          object.at("why").get<std::string>(), object.at("code").get<int>()};
}
void to_json(json& object, const SizeRequest& request) {
  object = {{"serial", request.serial}, {"ranks", request.ranks}};
}
void from_json(const json& object, SizeRequest& request) {
  request = {object.at("serial").get<std::int64_t>(), object.at("ranks").get<int>()};
}
void to_json(json& object, const StopRequest& request) {
  object = {{"why", request.why}, {"code", request.code}, {"grace_ms", request.grace_ms}};
}
void from_json(const json& object, StopRequest& request) {
  request = {object.at("why").get<std::string>(), object.at("code").get<int>(),
             object.at("grace_ms").get<std::int64_t>()};
}
void to_json(json& object, const SavedCheckpoint& saved) {
  object = {{"serial", saved.serial}, {"folder", saved.folder}};
}
void from_json(const json& object, SavedCheckpoint& saved) {
  saved = {object.at("serial").get<std::int64_t>(), object.at("folder").get<std::string>()};
}
void to_json(json& object, const Placement& place) {
  object = {{"node", place.node},     {"incarnation", place.incarnation}, {"first", place.first},
            {"member", place.member}, {"replaces", place.replaces},       {"tries", place.tries}};
}
void from_json(const json& object, Placement& place) {
  place = {object.at("node").get<int>(),      object.at("incarnation").get<int>(),
           object.at("first").get<bool>(),    object.at("member").get<bool>(),
           object.at("replaces").get<bool>(), object.at("tries").get<int>()};
}
void to_json(json& object, const Announcement& told) {
  object = {{"number", told.number}, {"ranks", told.ranks}, {"newcomers", told.newcomers}};
}
void from_json(const json& object, Announcement& told) {
  told = {object.at("number").get<int>(), object.at("ranks").get<int>(),
          object.at("newcomers").get<std::set<int>>()};
}

namespace {

// Texts of programs may contain anything.
std::string dump(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::size_t longest_reason(std::size_t ranks) {
  constexpr std::size_t kOfAll = 32 << 10, kOfOne = 400;
  return std::min(kOfOne, kOfAll / std::max<std::size_t>(ranks, 1));
}

std::string to_text(const NodeReport& report) {
  return dump({{"node", report.node},
               {"host", report.host},
               {"slots", report.slots},
               {"failures", report.failures},
               {"ranks", by_number(report.ranks)},
               {"wanted", report.wanted},
               {"run", report.run},
               {"usable", report.usable ? object_of(*report.usable) : json()},
               {"saved", report.saved},
               {"stop", report.stop},
               {"leave", report.leave},
               {"replicated", report.replicated},
               {"servers_lost", report.servers_lost},
               {"holds_store", report.holds_store},
               {"left", report.left},
               {"knows_all_left", report.knows_all_left}});
}

std::string to_text(const Membership& membership) {
  return dump({{"policy", membership.policy},
               {"formed", membership.formed},
               {"attempt", membership.attempt},
               {"wanted", membership.wanted},
               {"replacements", membership.replacements},
               {"never_joined", membership.never_joined},
               {"incarnations", membership.incarnations},
               {"ranks", by_number(membership.ranks)},
               {"gone", membership.gone},
               {"aside", membership.aside},
               {"leaving", membership.leaving},
               {"successors", by_number(membership.successors)},
               {"servers", by_number(membership.servers)},
               {"announcement", membership.announcement},
               {"usable", object_of(membership.usable)},
               {"run", membership.run},
               {"saved", membership.saved},
               {"notes", by_number(membership.notes)},
               {"done", membership.done},
               {"end", membership.end},
               {"end_code", membership.end_code},
               {"stop", membership.stop},
               {"stop_node", membership.stop_node}});
}

NodeReport node_report_of(const std::string& text) {
  return read(text, "report of a node", [](const json& object) {
    return NodeReport{.node = object.at("node").get<int>(),
                      .host = object.at("host").get<std::string>(),
                      .slots = object.at("slots").get<int>(),
                      .failures = object.at("failures").get<int>(),
                      .ranks = numbered<RankReport>(object.at("ranks")),
                      .wanted = object.at("wanted").get<SizeRequest>(),
                      .run = object.at("run").get<std::string>(),
                      .usable = object.at("usable").is_null()
                                    ? std::nullopt
                                    : std::optional(usable_of(object.at("usable"))),
                      .saved = object.at("saved").get<SavedCheckpoint>(),
                      .stop = object.at("stop").get<StopRequest>(),
                      .leave = object.at("leave").get<StopRequest>(),
                      .replicated = object.at("replicated").get<std::set<int>>(),
                      .servers_lost = object.at("servers_lost").get<std::string>(),
                      .holds_store = object.at("holds_store").get<bool>(),
                      .left = object.at("left").get<bool>(),
                      .knows_all_left = object.at("knows_all_left").get<bool>()};
  });
}

Membership membership_of(const std::string& text) {
  return read(text, "plan of the job", [](const json& object) {
    return Membership{.policy = object.at("policy").get<std::string>(),
                      .formed = object.at("formed").get<bool>(),
                      .attempt = object.at("attempt").get<int>(),
                      .wanted = object.at("wanted").get<SizeRequest>(),
                      .replacements = object.at("replacements").get<int>(),
                      .never_joined = object.at("never_joined").get<int>(),
                      .incarnations = object.at("incarnations").get<int>(),
                      .ranks = numbered<Placement>(object.at("ranks")),
                      .gone = object.at("gone").get<std::set<int>>(),
                      .aside = object.at("aside").get<std::set<int>>(),
                      .leaving = object.at("leaving").get<std::set<int>>(),
                      .successors = numbered<Placement>(object.at("successors")),
                      .servers = numbered<int>(object.at("servers")),
                      .announcement = object.at("announcement").get<Announcement>(),
                      .usable = usable_of(object.at("usable")),
                      .run = object.at("run").get<std::string>(),
                      .saved = object.at("saved").get<SavedCheckpoint>(),
                      .notes = numbered<std::string>(object.at("notes")),
                      .done = object.at("done").get<bool>(),
                      .end = object.at("end").get<std::string>(),
                      .end_code = object.at("end_code").get<int>(),
                      .stop = object.at("stop").get<StopRequest>(),
                      .stop_node = object.at("stop_node").get<int>()};
  });
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
