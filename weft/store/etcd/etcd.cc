#include "weft/store/etcd/etcd.h"

#include <list>
#include <mutex>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/store/etcd/internal/change_feed.h"
#include "weft/store/etcd/internal/etcd_changes.h"

namespace weft::store {
namespace {

using internal::EtcdApi;
using internal::Op;
using internal::Request;
using internal::Response;
using internal::Status;
using nlohmann::json;

}  // namespace

class Etcd::Impl {
 public:
  explicit Impl(const EtcdUrl& url)
      : url_(url), keys_(url.prefix + "/k/"), feed_(url, keys_), sessions_(url) {}

  Response execute(const Request& request, Deadline deadline,
                   const std::function<bool()>& is_gone) {
    Lender lender(*this);
    EtcdApi& api = lender.api();
    switch (request.op) {
      case Op::kGet:
      case Op::kList: return read(api, request, deadline);
      case Op::kWait:
        if (!feed_.wait(request.key, request.revision, deadline, is_gone))
          return {.status = Status::kTimeout, .text = "nothing has changed"};
        return read(api, request, deadline);
      case Op::kGrant:
      case Op::kKeepAlive:
      case Op::kRevoke: return internal::change_lease(api, request, deadline);
      case Op::kStatus:
      case Op::kExpire:
        return {.status = Status::kInvalid, .text = "the store is etcd; ask etcdctl"};
      default: break;
    }
    return internal::change_key(api, {url_.prefix, sessions_.lease(deadline)}, request, deadline);
  }

 private:
  // Borrows a connection for a call.
  class Lender {
   public:
    explicit Lender(Impl& impl) : impl_(impl) {
      const std::lock_guard lock(impl.mutex_);
      if (impl.idle_.empty()) impl.idle_.push_back(std::make_unique<EtcdApi>(impl.url_));
      api_ = std::move(impl.idle_.back());
      impl.idle_.pop_back();
    }
    ~Lender() {
      const std::lock_guard lock(impl_.mutex_);
      impl_.idle_.push_back(std::move(api_));
    }
    Lender(const Lender&) = delete;
    Lender& operator=(const Lender&) = delete;
    EtcdApi& api() { return *api_; }

   private:
    Impl& impl_;
    std::unique_ptr<EtcdApi> api_;
  };

  Response read(EtcdApi& api, const Request& request, Deadline deadline) const {
    const std::string key = keys_ + request.key;
    json body = {{"key", internal::to_base64(key)}};
    if (request.op != Op::kGet) body["range_end"] = internal::to_base64(internal::range_end(key));
    const EtcdApi::Answer answer = api.call("/v3/kv/range", body, deadline);
    if (answer.code != 0) return {.status = Status::kInvalid, .text = "etcd: " + answer.message};
    Response response;
    response.revision =
        internal::number_in(answer.body.value("header", json::object()), "revision");
    for (const auto& kv : answer.body.value("kvs", json::array())) {
      Item item;
      item.key = internal::from_base64(kv.value("key", "")).substr(keys_.size());
      item.value.bytes = internal::from_base64(kv.value("value", ""));
      item.value.revision = internal::number_in(kv, "mod_revision");
      response.items.push_back(std::move(item));
    }
    if (request.op != Op::kGet) return response;
    if (response.items.empty()) {
      response.status = Status::kNotDone;
    } else {
      response.value = std::move(response.items[0].value);
      response.items.clear();
    }
    return response;
  }

  const EtcdUrl url_;
  const std::string keys_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<EtcdApi>> idle_;  // guarded by mutex_
  internal::ChangeFeed feed_;
  internal::SessionLease sessions_;
};

Etcd::Etcd(const EtcdUrl& url) : impl_(std::make_unique<Impl>(url)) {}
Etcd::~Etcd() = default;

Response Etcd::execute(const Request& request, Deadline deadline,
                       const std::function<bool()>& is_gone) {
  Response response;
  try {
    response = impl_->execute(request, deadline, is_gone);
  } catch (const Error& error) {
    response = {.status = error.code() == Errc::kTimeout ? Status::kTimeout : Status::kInvalid,
                .text = error.message()};
  }
  response.sequence = request.sequence;
  return response;
}

// For a program that uses it directly: a client of its own for each call, since calls may be
// concurrent.
Response Etcd::call(Request request, Deadline deadline) {
  request.client = random_number();
  request.sequence = 1;
  return execute(request, deadline, [] { return false; });
}

}  // namespace weft::store
