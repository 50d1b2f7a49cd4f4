// Reports of nodes and plans as text: JSON, since people read them when they look for a fault.
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

}  // namespace

void to_json(json& object, const RankReport& rank) {
  object = {{"incarnation", rank.incarnation}, {"phase", static_cast<int>(rank.phase)}};
}
void from_json(const json& object, RankReport& rank) {
  const int phase = object.at("phase").get<int>();
  if (phase < 0 || phase > static_cast<int>(RankPhase::kDone))
    throw std::out_of_range("phase " + std::to_string(phase));
  rank = {object.at("incarnation").get<int>(), static_cast<RankPhase>(phase)};
}
void to_json(json& object, const Placement& place) {
  object = {{"node", place.node},
            {"incarnation", place.incarnation},
            {"member", place.member},
            {"replaces", place.replaces}};
}
void from_json(const json& object, Placement& place) {
  place = {object.at("node").get<int>(), object.at("incarnation").get<int>(),
           object.at("member").get<bool>(), object.at("replaces").get<bool>()};
}

std::string to_text(const NodeReport& report) {
  const json object = {{"node", report.node},     {"host", report.host},
                       {"slots", report.slots},   {"failures", report.failures},
                       {"drains", report.drains}, {"ranks", by_number(report.ranks)}};
  return object.dump();
}

std::string to_text(const JobPlan& plan) {
  const Announcement& told = plan.announcement;
  const json object = {{"formed", plan.formed},
                       {"wanted", plan.wanted},
                       {"replacements", plan.replacements},
                       {"ranks", by_number(plan.ranks)},
                       {"incarnations", by_number(plan.incarnations)},
                       {"gone", plan.gone},
                       {"aside", plan.aside},
                       {"announcement",
                        {{"number", told.number},
                         {"ranks", told.ranks},
                         {"newcomers", told.newcomers},
                         {"leaving", told.leaving}}},
                       {"end", plan.end}};
  return object.dump();
}

NodeReport node_report_of(const std::string& text) {
  return read(text, "report of a node", [](const json& object) {
    return NodeReport{.node = object.at("node").get<int>(),
                      .host = object.at("host").get<std::string>(),
                      .slots = object.at("slots").get<int>(),
                      .failures = object.at("failures").get<int>(),
                      .drains = object.at("drains").get<bool>(),
                      .ranks = numbered<RankReport>(object.at("ranks"))};
  });
}

JobPlan job_plan_of(const std::string& text) {
  return read(text, "plan of the job", [](const json& object) {
    const json& told = object.at("announcement");
    return JobPlan{.formed = object.at("formed").get<bool>(),
                   .wanted = object.at("wanted").get<int>(),
                   .replacements = object.at("replacements").get<int>(),
                   .ranks = numbered<Placement>(object.at("ranks")),
                   .incarnations = numbered<int>(object.at("incarnations")),
                   .gone = object.at("gone").get<std::set<int>>(),
                   .aside = object.at("aside").get<std::set<int>>(),
                   .announcement = {.number = told.at("number").get<int>(),
                                    .ranks = told.at("ranks").get<int>(),
                                    .newcomers = told.at("newcomers").get<std::set<int>>(),
                                    .leaving = told.at("leaving").get<std::set<int>>()},
                   .end = object.at("end").get<std::string>()};
  });
}

}  // namespace weft::launch
