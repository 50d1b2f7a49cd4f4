// In which buckets a step's gradients are sent as messages, and in which order: the same on all
// ranks, whatever the order in which buckets fill.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/bucket_assignment.h"
#include "weft/engine/internal/tuner.h"

namespace weft::engine::internal {

class SendingOrder {
 public:
  // `sizes`: elements of each parameter. Until agree(), parameters are taken in reverse order.
  SendingOrder(std::vector<std::int64_t> sizes, Fill fill);

  // The order of gradients in backward() is known.
  bool is_agreed() const { return agreed_; }
  // Collective, after the first step: takes the order in which rank 0's gradients became ready.
  void agree(const Group& group);
  // Takes an order that the ranks agreed on before.
  void agree(std::vector<int> order);
  // After these two, buckets are sent one after the other, until another order of theirs is set.
  void refill(Fill fill);
  void send_in(std::vector<int> launches) { launches_ = std::move(launches); }

  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  const std::vector<int>& params() const { return params_; }
  const Fill& fill() const { return fill_; }
  const std::vector<std::vector<int>>& buckets() const { return assignment_.buckets; }
  // Buckets as they are sent, and then awaited.
  const std::vector<int>& launches() const { return launches_; }
  int bucket_of(int param) const;
  // The place of its bucket in launches().
  std::size_t place_of(int param) const;

  // A step: the gradients that become ready, and the buckets to send meanwhile. nullopt: the next
  // one is not full.
  void begin();
  void note_ready(int param);
  std::optional<int> next_full();
  // After backward(). nullopt: all are sent.
  std::optional<int> next();

 private:
  void reassign();

  const std::vector<std::int64_t> sizes_;
  Fill fill_;
  std::vector<int> params_;  // in the order of their gradients
  BucketAssignment assignment_;
  std::vector<int> launches_;
  bool agreed_ = false;
  // Of this step.
  std::vector<int> ready_;    // until agree(): parameters as they became ready
  std::vector<int> unready_;  // by bucket: number of parameters that are not ready
  std::size_t next_ = 0;      // in launches_
};

}  // namespace weft::engine::internal
