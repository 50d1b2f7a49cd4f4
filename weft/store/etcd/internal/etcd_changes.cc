#include "weft/store/etcd/internal/etcd_changes.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/store/internal/decimal_sum.h"

namespace weft::store::internal {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kSessionLease = 600s, kRenewal = 60s;

struct Current {
  std::optional<Value> value;  // of the key
  LeaseId lease = 0;
  std::optional<Value> record;  // of the client
};

// What a request makes of the key.
struct Outcome {
  Response response;
  std::optional<std::string> value;  // to write
  LeaseId lease = 0;
  bool erases = false;
  bool changes() const { return value.has_value() || erases; }
};

Outcome refused_outcome(std::string text) {
  Outcome outcome;
  outcome.response = {.status = Status::kInvalid, .text = std::move(text)};
  return outcome;
}

Outcome added(const Request& request, const Current& now) {
  const DecimalSum sum =
      decimal_sum(request.key, now.value ? now.value->bytes : "", request.number);
  if (!sum.refusal.empty()) return refused_outcome(sum.refusal);
  Outcome outcome;
  outcome.value = std::to_string(sum.value);
  outcome.lease = now.lease;
  outcome.response.number = sum.value;
  return outcome;
}

Outcome outcome_of(const Request& request, const Current& now) {
  Outcome outcome;
  switch (request.op) {
    case Op::kAdd: return added(request, now);
    case Op::kAppend:
      outcome.value = (now.value ? now.value->bytes : "") + request.value;
      outcome.lease = now.lease;
      if (outcome.value->size() > kMaxValueBytes)
        return refused_outcome("append: the value of " + request.key.substr(0, 200) +
                               " would be too long");
      return outcome;
    case Op::kErase:
      outcome.erases = now.value.has_value();
      if (!outcome.erases) outcome.response.status = Status::kNotDone;
      return outcome;
    case Op::kCompareAndSet:
      if ((now.value ? now.value->revision : 0) != request.revision) {
        outcome.response.status = Status::kNotDone;
        outcome.response.value = now.value;
        return outcome;
      }
      break;
    default: break;
  }
  outcome.value = request.value;
  outcome.lease = request.lease;
  return outcome;
}

// Keys in etcd.
struct Names {
  std::string key, record;
};

Names names_of(const EtcdPlace& place, const Request& request) {
  return {to_base64(place.prefix + "/k/" + request.key),
          to_base64(place.prefix + "/c/" + std::to_string(request.client))};
}

std::optional<Value> first_of(const json& range, LeaseId* lease) {
  const json kvs = range.value("response_range", json::object()).value("kvs", json::array());
  if (kvs.empty()) return std::nullopt;
  if (lease != nullptr) *lease = number_in(kvs[0], "lease");
  return Value{from_base64(kvs[0].value("value", "")), number_in(kvs[0], "mod_revision")};
}

Error refused_by_etcd(const EtcdApi::Answer& answer) {
  return Error(Errc::kInvalidArgument, "etcd refuses a request: " + answer.message);
}

Current read_current(EtcdApi& api, const Names& names, Deadline deadline) {
  const auto range = [](const std::string& key) { return json{{"request_range", {{"key", key}}}}; };
  const EtcdApi::Answer answer =
      api.call("/v3/kv/txn", {{"success", {range(names.key), range(names.record)}}}, deadline);
  if (answer.code != 0) throw refused_by_etcd(answer);
  const json responses = answer.body.value("responses", json::array());
  if (responses.size() != 2) throw Error(Errc::kCorrupt, "a transaction of etcd lacks its answers");
  Current now;
  now.value = first_of(responses[0], &now.lease);
  now.record = first_of(responses[1], nullptr);
  return now;
}

json unchanged(const std::string& key, const std::optional<Value>& value) {
  return {{"key", key},
          {"target", "MOD"},
          {"mod_revision", std::to_string(value ? value->revision : 0)}};
}

json put(const std::string& key, const std::string& value, LeaseId lease) {
  return {{"request_put",
           {{"key", key}, {"value", to_base64(value)}, {"lease", std::to_string(lease)}}}};
}

// None if the key or the record has changed meanwhile.
std::optional<Response> write_outcome(EtcdApi& api, const Names& names, const Current& now,
                                      const json& writes, Deadline deadline) {
  const EtcdApi::Answer answer =
      api.call("/v3/kv/txn",
               {{"compare", {unchanged(names.key, now.value), unchanged(names.record, now.record)}},
                {"success", writes}},
               deadline);
  if (answer.code != 0) throw refused_by_etcd(answer);
  if (!answer.body.value("succeeded", false)) return std::nullopt;
  return Response{.revision = number_in(answer.body.value("header", json::object()), "revision")};
}

}  // namespace

Response change_key(EtcdApi& api, const EtcdPlace& place, const Request& request,
                    Deadline deadline) {
  const Names names = names_of(place, request);
  if (request.op == Op::kEndSession) {
    api.call("/v3/kv/deleterange", {{"key", names.record}}, deadline);
    return {};
  }
  for (;;) {
    const Current now = read_current(api, names, deadline);
    if (now.record) {
      Response before = decode_response(now.record->bytes);
      before.revision = now.record->revision;
      if (before.sequence == request.sequence) return before;
      if (before.sequence > request.sequence)
        return {.status = Status::kTimeout, .text = "the client has sent a later request"};
    }
    Outcome outcome = outcome_of(request, now);
    outcome.response.sequence = request.sequence;
    if (!outcome.changes()) return outcome.response;
    json writes = json::array();
    if (outcome.erases) {
      writes.push_back({{"request_delete_range", {{"key", names.key}}}});
    } else {
      writes.push_back(put(names.key, *outcome.value, outcome.lease));
    }
    writes.push_back(put(names.record, encode(outcome.response), place.session_lease));
    if (const auto written = write_outcome(api, names, now, writes, deadline)) {
      outcome.response.revision = written->revision;
      return outcome.response;
    }
  }
}

Response change_lease(EtcdApi& api, const Request& request, Deadline deadline) {
  if (request.op == Op::kGrant) {
    // Each request of a client has its own lease. The top bit stays clear: etcd takes signed
    // numbers. For 0, etcd would choose a number.
    constexpr LeaseId kMost = std::numeric_limits<std::int64_t>::max();
    const LeaseId lease =
        std::max<LeaseId>(1, (request.client * 0x9e3779b97f4a7c15 + request.sequence) & kMost);
    const std::int64_t seconds = (request.number + 999) / 1000;
    const EtcdApi::Answer answer =
        api.call("/v3/lease/grant",
                 {{"TTL", std::to_string(seconds)}, {"ID", std::to_string(lease)}}, deadline);
    const bool exists = answer.code == EtcdApi::kFailedPrecondition;  // an earlier attempt made it
    if (answer.code != 0 && !exists) throw refused_by_etcd(answer);
    return {.number = static_cast<std::int64_t>(lease)};
  }
  const json body = {{"ID", std::to_string(request.lease)}};
  if (request.op == Op::kKeepAlive) {
    const EtcdApi::Answer answer = api.call("/v3/lease/keepalive", body, deadline);
    const bool lives =
        answer.code == 0 && number_in(answer.body.value("result", json::object()), "TTL") > 0;
    return {.status = lives ? Status::kDone : Status::kNotDone};
  }
  const EtcdApi::Answer answer = api.call("/v3/lease/revoke", body, deadline);
  if (answer.code != 0 && answer.code != EtcdApi::kNotFound) throw refused_by_etcd(answer);
  const bool ended = answer.code == 0 || answer.repeated;
  return {.status = ended ? Status::kDone : Status::kNotDone};
}

LeaseId SessionLease::lease(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (!renew_.passed()) return lease_;
  if (lease_ != 0) {
    const Response kept = change_lease(api_, {.op = Op::kKeepAlive, .lease = lease_}, deadline);
    if (kept.status != Status::kDone) lease_ = 0;
  }
  if (lease_ == 0) {
    const Response granted =
        change_lease(api_,
                     {.op = Op::kGrant,
                      .client = random_number(),
                      .sequence = 1,
                      .number = std::chrono::milliseconds(kSessionLease).count()},
                     deadline);
    lease_ = static_cast<LeaseId>(granted.number);
  }
  renew_ = Deadline::in(kRenewal);
  return lease_;
}

}  // namespace weft::store::internal
