// The groups of a process that were split off one another. If one fails, the others know the
// reason.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/net/endpoint.h"

namespace weft::comm::internal {

class Family {
 public:
  // A group of the family, for as long as the group exists.
  class Member {
   public:
    // The endpoint outlives it.
    Member(std::shared_ptr<Family> family, net::Endpoint& endpoint)
        : family_(std::move(family)), endpoint_(endpoint) {
      const std::lock_guard lock(family_->mutex_);
      family_->members_.push_back(&endpoint_);
    }
    ~Member() {
      const std::lock_guard lock(family_->mutex_);
      family_->note(endpoint_.failure());
      std::erase(family_->members_, &endpoint_);
    }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // The first kCorrupt or kInternal error of a group of the family on this rank. The peers know
    // all other errors already, or the errors follow from another one.
    std::optional<Error> cause() const {
      const std::lock_guard lock(family_->mutex_);
      for (const net::Endpoint* member : family_->members_) family_->note(member->failure());
      return family_->cause_;
    }
    // The error that this rank sends to the peers when it aborts a group: the cause, else the first
    // timeout.
    std::optional<Error> why_given_up() const {
      if (auto first = cause()) return first;
      const std::lock_guard lock(family_->mutex_);
      return family_->timeout_;
    }

   private:
    const std::shared_ptr<Family> family_;
    net::Endpoint& endpoint_;
  };

 private:
  void note(const std::optional<Error>& error) {
    if (!error) return;
    if (!cause_ && (error->code() == Errc::kCorrupt || error->code() == Errc::kInternal))
      cause_ = error;
    if (!timeout_ && error->code() == Errc::kTimeout) timeout_ = error;
  }

  std::mutex mutex_;
  std::vector<net::Endpoint*> members_;  // guarded by mutex_
  std::optional<Error> cause_;           // guarded by mutex_
  std::optional<Error> timeout_;         // guarded by mutex_
};

}  // namespace weft::comm::internal
