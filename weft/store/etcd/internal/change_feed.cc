#include "weft/store/etcd/internal/change_feed.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::store::internal {
namespace {

using namespace std::chrono_literals;

}  // namespace

std::string range_end(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // to the last key
  ++prefix.back();
  return prefix;
}

ChangeFeed::ChangeFeed(const EtcdUrl& url, std::string prefix)
    : prefix_(std::move(prefix)),
      api_(url),
      thread_([this](const std::stop_token& stop) { follow(stop); }) {}

bool ChangeFeed::wait(const std::string& prefix, Revision since, Deadline deadline,
                      const std::function<bool()>& is_gone) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (last_ != 0 && changes_.any_since(prefix, since)) return true;
    if (deadline.passed() || is_gone()) return false;
    changed_.wait_until(lock, std::min(deadline.when(), Deadline::in(500ms).when()));
  }
}

void ChangeFeed::follow(const std::stop_token& stop) {
  Revision last = 0;
  while (!stop.stop_requested()) {
    nlohmann::json request;
    request["key"] = to_base64(prefix_);
    request["range_end"] = to_base64(range_end(prefix_));
    if (last != 0) request["start_revision"] = std::to_string(last + 1);
    try {
      api_.stream("/v3/watch", {{"create_request", request}}, [&](const nlohmann::json& message) {
        return !stop.stop_requested() && take(message);
      });
    } catch (const Error& error) {
      log_warn("the watch of etcd ends: " + error.message());
    }
    const std::lock_guard lock(mutex_);
    last = last_;
  }
}

// One message of the stream. Returns false to end it.
bool ChangeFeed::take(const nlohmann::json& message) {
  const nlohmann::json result = message.value("result", nlohmann::json::object());
  const std::lock_guard lock(mutex_);
  if (result.value("canceled", false)) {  // changes after last_ are no longer kept
    last_ = 0;
    return false;
  }
  if (last_ == 0) {
    last_ = number_in(result.value("header", nlohmann::json::object()), "revision");
    changes_.restart(last_);
  }
  for (const auto& event : result.value("events", nlohmann::json::array())) {
    const auto kv = event.value("kv", nlohmann::json::object());
    const Revision revision = number_in(kv, "mod_revision");
    const std::string key = from_base64(kv.value("key", ""));
    changes_.add(revision, key.substr(std::min(key.size(), prefix_.size())));
    last_ = std::max(last_, revision);
  }
  changed_.notify_all();
  return true;
}

}  // namespace weft::store::internal
