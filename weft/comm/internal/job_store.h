// The job's replicated store (weft/store) as a c10d::Store, for rendezvous and for any other user
// of PyTorch's interface. Keys and values are those of TCPStore: add() counts in decimal text,
// get() waits for the key, compareSet() with an empty expected value creates the key.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/store/store.h"

namespace weft::comm::internal {

// Thread-safe, except setTimeout(). Throws c10::DistStoreError at the timeout and if no store
// process can be reached, as TCPStore does, and store::FullStore if there is no room. The queue of
// TCPStore is not supported.
class JobStore : public c10d::Store {
 public:
  JobStore(std::shared_ptr<store::Store> store, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;

  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  // The number of keys of the whole store.
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }
  std::vector<std::string> listKeys() override;

 private:
  Deadline deadline() const { return Deadline::in(timeout_); }
  std::string wait_for(const std::string& key, Deadline deadline);

  const std::shared_ptr<store::Store> store_;
};

}  // namespace weft::comm::internal
