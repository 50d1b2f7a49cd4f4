#include "weft/comm/internal/job_store.h"

#include <c10/util/Exception.h>

#include "weft/base/error.h"

namespace weft::comm::internal {
namespace {

std::string text_of_bytes(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

// Converts errors into those that callers of a c10d::Store expect.
template <typename Call>
auto as_c10d(const Call& call) {
  try {
    return call();
  } catch (const store::FullStore&) {
    throw;  // the store answers, and another try does not help
  } catch (const Error& error) {
    if (error.code() != Errc::kTimeout && error.code() != Errc::kUnavailable) throw;
    C10_THROW_ERROR(DistStoreError, error.message());
  }
}

}  // namespace

JobStore::JobStore(std::shared_ptr<store::Store> store, std::chrono::milliseconds timeout)
    : c10d::Store(timeout), store_(std::move(store)) {}

c10::intrusive_ptr<c10d::Store> JobStore::clone() {
  return c10::make_intrusive<JobStore>(store_, timeout_);
}

void JobStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  as_c10d([&] { return store_->set({key, text_of_bytes(value)}, deadline()); });
}

std::vector<std::uint8_t> JobStore::compareSet(const std::string& key,
                                               const std::vector<std::uint8_t>& expected,
                                               const std::vector<std::uint8_t>& desired) {
  return as_c10d([&] {
    const Deadline until = deadline();
    auto there = store_->get(key, until);
    for (;;) {
      if (!there && !expected.empty()) return expected;
      if (there && there->bytes != text_of_bytes(expected)) return bytes_of_text(there->bytes);
      const auto swap = store_->compare_and_set({key, text_of_bytes(desired)},
                                                there ? there->revision : 0, until);
      if (swap.done) return desired;
      there = swap.value;
    }
  });
}

// Returns the value of the key, once it exists.
std::string JobStore::wait_for(const std::string& key, Deadline deadline) {
  auto there = store_->get(key, deadline);
  for (store::Revision since = 0; !there;) {
    const auto listing =
        since == 0 ? store_->list(key, deadline) : store_->wait(key, since, deadline);
    if (!listing) {
      C10_THROW_ERROR(DistStoreError,
                      "wait timeout: the key " + key + " was not set before the deadline");
    }
    since = listing->revision;
    for (const auto& item : listing->items) {
      if (item.key == key) there = item.value;
    }
  }
  return there->bytes;
}

std::vector<std::uint8_t> JobStore::get(const std::string& key) {
  return as_c10d([&] { return bytes_of_text(wait_for(key, deadline())); });
}

std::int64_t JobStore::add(const std::string& key, std::int64_t value) {
  return as_c10d([&] { return store_->add(key, value, deadline()); });
}

bool JobStore::deleteKey(const std::string& key) {
  return as_c10d([&] { return store_->erase(key, deadline()); });
}

bool JobStore::check(const std::vector<std::string>& keys) {
  return as_c10d([&] {
    for (const auto& key : keys) {
      if (!store_->get(key, deadline())) return false;
    }
    return true;
  });
}

std::int64_t JobStore::getNumKeys() { return static_cast<std::int64_t>(listKeys().size()); }

std::vector<std::string> JobStore::listKeys() {
  return as_c10d([&] {
    std::vector<std::string> keys;
    for (const auto& item : store_->list("", deadline()).items) keys.push_back(item.key);
    return keys;
  });
}

void JobStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void JobStore::wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) {
  as_c10d([&] {
    const Deadline until = Deadline::in(timeout);
    for (const auto& key : keys) wait_for(key, until);
  });
}

void JobStore::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  as_c10d([&] { return store_->append(key, text_of_bytes(value), deadline()); });
}

std::vector<std::vector<std::uint8_t>> JobStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<std::uint8_t>> values;
  for (const auto& key : keys) values.push_back(get(key));
  return values;
}

void JobStore::multiSet(const std::vector<std::string>& keys,
                        const std::vector<std::vector<std::uint8_t>>& values) {
  WEFT_REQUIRE(keys.size() == values.size(), "multiSet needs a value for each key");
  for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
}

}  // namespace weft::comm::internal
