// The groups of a process that were split off one another. If one fails, the others know the
// reason. Their traffic is counted together.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/job_ranks.h"

namespace weft::comm::internal {

class RelatedGroups {
 public:
  // A group of these, for as long as the group exists.
  class Member {
   public:
    // The engine outlives it.
    // `job_ranks` as in BackendOptions.
    Member(std::shared_ptr<RelatedGroups> related, Engine& engine, std::vector<int> job_ranks)
        : related_(std::move(related)), engine_(engine), job_ranks_(std::move(job_ranks)) {
      const std::lock_guard lock(related_->mutex_);
      related_->members_.push_back(this);
      if (!std::exchange(related_->has_first_, true)) related_->first_ = this;
    }
    ~Member() {
      const std::lock_guard lock(related_->mutex_);
      related_->note(failure());
      add(related_->more_, engine_.traffic());
      std::erase(related_->members_, this);
      if (related_->first_ == this) related_->first_ = nullptr;
    }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // The first kCorrupt or kInternal error of a related group on this rank. The peers know
    // all other errors already, or the errors follow from another one.
    std::optional<Error> cause() const {
      const std::lock_guard lock(related_->mutex_);
      for (const Member* member : related_->members_) related_->note(member->failure());
      return related_->cause_;
    }
    // The loss of a peer that this rank has found in another related group, before this group
    // failed. The peers hear of the loss and abort their groups, which may reach this rank here.
    std::optional<Error> earlier_loss() const {
      const std::lock_guard lock(related_->mutex_);
      const Member* first = this;
      for (const Member* member : related_->members_) {
        if (member->engine_.endpoint().failed_at() < first->engine_.endpoint().failed_at())
          first = member;
      }
      const auto found = first->failure();
      const bool lost = first != this && found && found->code() == Errc::kPeerLost;
      return lost ? found : std::nullopt;
    }
    // The error that this rank sends to the peers when it aborts a group: the cause, else the first
    // timeout.
    std::optional<Error> why_given_up() const {
      if (auto first = cause()) return first;
      const std::lock_guard lock(related_->mutex_);
      return related_->timeout_;
    }

    // Why the ranks of this group can meet no more: one is lost, or has given the group up. Looks
    // at the processes, so no operation need have failed. nullopt: no reason is known.
    std::optional<Error> loss() const {
      const auto loss = loss_in(engine_);
      return loss ? std::optional(in_job_ranks(*loss, job_ranks_)) : std::nullopt;
    }

    // Moved outside of groups.
    void count(const Traffic& moved) const {
      const std::lock_guard lock(related_->mutex_);
      add(related_->more_, moved);
    }
    // Of all related groups, those that have ended included.
    Traffic traffic() const {
      const std::lock_guard lock(related_->mutex_);
      Traffic all = related_->more_;
      for (const Member* member : related_->members_) add(all, member->engine_.traffic());
      return all;
    }

   private:
    std::optional<Error> failure() const {
      const auto error = engine_.endpoint().failure();
      return error ? std::optional(in_job_ranks(*error, job_ranks_)) : std::nullopt;
    }

    const std::shared_ptr<RelatedGroups> related_;
    Engine& engine_;
    const std::vector<int> job_ranks_;
  };

  // Member::loss() of the first group, from which all others were split off. A rank that waits for
  // others of a new group asks for it: each of them may have left because of a rank of another one.
  std::optional<Error> loss() {
    const std::lock_guard lock(mutex_);
    return first_ != nullptr ? first_->loss() : std::nullopt;
  }

 private:
  static void add(Traffic& sum, const Traffic& more) {
    sum.sent_bytes += more.sent_bytes;
    sum.shared_bytes += more.shared_bytes;
    sum.is_complete = sum.is_complete && more.is_complete;
  }
  void note(const std::optional<Error>& error) {
    if (!error) return;
    if (!cause_ && (error->code() == Errc::kCorrupt || error->code() == Errc::kInternal))
      cause_ = error;
    if (!timeout_ && error->code() == Errc::kTimeout) timeout_ = error;
  }

  std::mutex mutex_;
  std::vector<Member*> members_;  // guarded by mutex_
  Member* first_ = nullptr;       // guarded by mutex_; null before the first group and after it
  bool has_first_ = false;        // guarded by mutex_
  Traffic more_;                  // guarded by mutex_: of groups that have ended, and of no group
  std::optional<Error> cause_;    // guarded by mutex_
  std::optional<Error> timeout_;  // guarded by mutex_
};

}  // namespace weft::comm::internal
