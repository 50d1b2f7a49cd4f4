#include "weft/comm/internal/group_backend.h"

namespace weft::comm::internal {
namespace {

class OtherBackend final : public GroupBackend {
 public:
  explicit OtherBackend(c10d::Backend& backend) : backend_(backend) {}

  std::chrono::milliseconds timeout() const override { return std::chrono::minutes(5); }
  net::Host* host() override { return nullptr; }
  const HostSplit* split() override { return nullptr; }
  c10::intrusive_ptr<c10d::Store> store() const override { return nullptr; }
  // A sum of two has one order.
  bool has_ordered_sums() const override { return backend_.getSize() <= 2; }
  bool has_device_backend() const override { return false; }
  Traffic traffic() const override { return {.is_complete = backend_.getSize() <= 1}; }
  void count(const Traffic&) const override {}
  void name_group(const std::string&) override {}
  void abort_with(const Error&) override { backend_.abort(); }
  void stop() override { backend_.abort(); }
  bool run_now(schedule::Collective, const net::DirectArgs&) override { return false; }
  bool send_now(std::span<std::byte>, int, int) override { return false; }
  bool recv_now(std::span<std::byte>, int, int) override { return false; }

 private:
  c10d::Backend& backend_;
};

}  // namespace

GroupBackend* weft_backend(c10d::Backend& backend) { return dynamic_cast<GroupBackend*>(&backend); }

std::unique_ptr<GroupBackend> other_backend(c10d::Backend& backend) {
  return std::make_unique<OtherBackend>(backend);
}

}  // namespace weft::comm::internal
