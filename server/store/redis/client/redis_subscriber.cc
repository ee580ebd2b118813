#include "server/store/redis/client/redis_subscriber.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/backoff.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_error.h"
#include "server/store/redis/client/redis_topology.h"
#include "server/store/redis/client/subscriber_link.h"
#include "server/store/redis/client/wake_event.h"

namespace routing_replay::server {
namespace {

constexpr Backoff::Options kPauses = {.initial = std::chrono::milliseconds(10),
                                      .maximum = std::chrono::milliseconds(500)};

class Subscriber final : public RedisSubscriber {
 public:
  Subscriber(std::shared_ptr<RedisTopology> topology, Callback callback)
      : topology_(std::move(topology)),
        callback_(std::move(callback)),
        clock_(*topology_->options().clock),
        quiet_(topology_->options().response_timeout / 2),
        backoff_(kPauses),
        thread_([this] { Run(); }) {}

  ~Subscriber() override {
    stop_.Set();
    wake_.Set();
    thread_.join();
  }

  void Subscribe(absl::string_view channel) override { Order({std::string(channel), 1}); }
  void Unsubscribe(absl::string_view channel) override { Order({std::string(channel), -1}); }
  absl::Status status() const override {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  struct Request {
    std::string channel;
    int change;
  };
  struct Channel {
    int count = 0;
    SubscriberLink* link = nullptr;  // Where it is subscribed to, or asked for.
    bool heard = false;
  };

  void Order(Request request);
  void SetStatus(absl::Status status);

  // The rest belongs to the background thread.
  void Run();
  void TakeRequests();
  void FollowMap();
  void PlaceChannels();
  void Place(const std::string& name, Channel& channel, std::map<RedisAddress, absl::Status>& unreachable);
  absl::Status Refresh();
  absl::StatusOr<SubscriberLink*> LinkTo(const RedisAddress& server);
  void Wait();
  void MoveLinks();
  void CloseLink(const SubscriberLink& link);
  void Handle(ChannelNews news);
  void Unplace(const std::string& name, Channel& channel);
  void RetryLater(const absl::Status& why);
  void Deliver();

  const std::shared_ptr<RedisTopology> topology_;
  const Callback callback_;
  const Clock& clock_;
  const Clock::Duration quiet_;
  WakeEvent wake_;
  WakeEvent stop_;
  mutable Mutex mutex_;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  std::map<std::string, Channel> channels_;
  std::map<RedisAddress, std::unique_ptr<SubscriberLink>> links_;
  std::vector<RedisEvent> events_;  // To be delivered.
  Backoff backoff_;
  int64_t generation_ = 0;
  std::set<std::string> unplaced_;  // Channels without a link.
  bool refresh_ = false;            // The map is not to be trusted.
  Clock::Time retry_at_{};
  std::thread thread_;  // Last: it uses all of the above.
};

void Subscriber::Order(Request request) {
  {
    const MutexLock lock(mutex_);
    requests_.push_back(std::move(request));
  }
  wake_.Set();
}

void Subscriber::SetStatus(absl::Status status) {
  const MutexLock lock(mutex_);
  status_ = std::move(status);
}

void Subscriber::Run() {
  while (!stop_.is_set()) {
    wake_.Clear();
    TakeRequests();
    FollowMap();
    PlaceChannels();
    MoveLinks();
    Deliver();
    Wait();
  }
}

void Subscriber::TakeRequests() {
  std::vector<Request> requests;
  {
    const MutexLock lock(mutex_);
    requests.swap(requests_);
  }
  for (const Request& request : requests) {
    Channel& channel = channels_[request.channel];
    channel.count += request.change;
    if (channel.count <= 0) {
      if (channel.link != nullptr) channel.link->Unsubscribe(request.channel);
      unplaced_.erase(request.channel);
      channels_.erase(request.channel);
    } else if (channel.heard && request.change > 0) {
      events_.push_back({request.channel, std::nullopt});
    } else if (channel.link == nullptr) {
      unplaced_.insert(request.channel);
    }
  }
}

// Somebody learned where slots live now: channels follow without waiting for their old server to say so.
void Subscriber::FollowMap() {
  const auto view = topology_->view();
  if (view->generation == generation_) return;
  generation_ = view->generation;
  for (auto& [name, channel] : channels_) {
    if (channel.link == nullptr) continue;
    const auto server = view->map.MasterOf(RedisSlotOf(name));
    if (!server || *server == channel.link->server()) continue;
    channel.link->Unsubscribe(name);
    Unplace(name, channel);
  }
}

void Subscriber::PlaceChannels() {
  if (unplaced_.empty() || clock_.Now() < retry_at_) return;
  if (refresh_) {
    if (auto status = Refresh(); !status.ok()) return RetryLater(status);
    refresh_ = false;
  }
  std::map<RedisAddress, absl::Status> unreachable;
  for (const std::string& name : std::vector<std::string>(unplaced_.begin(), unplaced_.end())) {
    Place(name, channels_.at(name), unreachable);
  }
}

void Subscriber::Place(const std::string& name, Channel& channel, std::map<RedisAddress, absl::Status>& unreachable) {
  const int slot = RedisSlotOf(name);
  const auto server = topology_->view()->map.MasterOf(slot);
  if (!server) return RetryLater(absl::UnavailableError(absl::StrCat("Redis: no server has slot ", slot)));
  if (unreachable.count(*server) > 0) return;
  const auto link = LinkTo(*server);
  if (link.ok()) {
    channel.link = *link;
    channel.link->Subscribe(name);
    unplaced_.erase(name);
  } else {
    unreachable.emplace(*server, link.status());
    RetryLater(link.status());
  }
}

absl::Status Subscriber::Refresh() {
  const auto view = topology_->view();
  if (!view->clustered) return absl::OkStatus();
  const auto deadline = DeadlineAfter(clock_.Now(), topology_->options().connect_timeout);
  return topology_->Refresh(view->generation, deadline);
}

absl::StatusOr<SubscriberLink*> Subscriber::LinkTo(const RedisAddress& server) {
  std::unique_ptr<SubscriberLink>& link = links_[server];
  if (link == nullptr) {
    auto connection =
        topology_->Open(server, {.deadline = Clock::Time::max(), .clock = &clock_, .interrupt_fd = stop_.fd()});
    if (!connection.ok()) {
      links_.erase(server);
      return connection.status();
    }
    link = std::make_unique<SubscriberLink>(*std::move(connection), clock_.Now());
  }
  return link.get();
}

void Subscriber::Wait() {
  std::vector<pollfd> sockets = {{wake_.fd(), POLLIN, 0}};
  for (const auto& [server, link] : links_) sockets.push_back(link->PollFor());
  Clock::Time until = clock_.Now() + quiet_ / 2;
  if (!unplaced_.empty()) until = std::min(until, retry_at_);
  // However the wait ends, the next round looks at everything.
  WaitForSockets(absl::MakeSpan(sockets), {.deadline = until, .clock = &clock_}).IgnoreError();
}

void Subscriber::MoveLinks() {
  std::vector<ChannelNews> news;
  std::vector<std::pair<SubscriberLink*, absl::Status>> over;
  for (const auto& [server, link] : links_) {
    const absl::Status status = link->Move(clock_.Now(), quiet_, news);
    if (!status.ok() || link->channels().empty()) over.emplace_back(link.get(), status);
  }
  for (ChannelNews& each : news) Handle(std::move(each));
  for (const auto& [link, status] : over) {
    if (!status.ok()) RetryLater(status);
    CloseLink(*link);
  }
}

void Subscriber::CloseLink(const SubscriberLink& link) {
  for (auto& [name, channel] : channels_) {
    if (channel.link == &link) Unplace(name, channel);
  }
  links_.erase(RedisAddress(link.server()));
}

void Subscriber::Handle(ChannelNews news) {
  const auto found = channels_.find(news.channel);
  if (found == channels_.end()) return;
  Channel& channel = found->second;
  switch (news.kind) {
    case ChannelNews::Kind::kHeard:
      channel.heard = true;
      backoff_.Reset();
      SetStatus(absl::OkStatus());
      events_.push_back({news.channel, std::nullopt});
      return;
    case ChannelNews::Kind::kMessage:
      events_.push_back({news.channel, std::move(news.text)});
      return;
    case ChannelNews::Kind::kRefused: {
      const RedisError error = ParseRedisError(news.text);
      if (error.kind == RedisError::Kind::kMoved && !error.address.host.empty()) {
        topology_->Moved(error.slot, error.address);
      }
      Unplace(news.channel, channel);
      return RetryLater(StatusOfRedisError("SSUBSCRIBE", news.text));
    }
    case ChannelNews::Kind::kEnded:
      Unplace(news.channel, channel);
      return RetryLater(absl::UnavailableError("Redis: a channel moved to another server"));
  }
}

void Subscriber::Unplace(const std::string& name, Channel& channel) {
  channel.link = nullptr;
  channel.heard = false;
  unplaced_.insert(name);
}

void Subscriber::RetryLater(const absl::Status& why) {
  refresh_ = true;
  // One pause for all that went wrong at the same time.
  if (retry_at_ <= clock_.Now()) retry_at_ = clock_.Now() + backoff_.Next();
  SetStatus(why);
}

void Subscriber::Deliver() {
  const std::vector<RedisEvent> events = std::exchange(events_, {});
  for (const RedisEvent& event : events) {
    if (stop_.is_set()) return;
    callback_(event);
  }
}

}  // namespace

std::unique_ptr<RedisSubscriber> RedisSubscriber::Start(RedisCluster& cluster, Callback callback) {
  return std::make_unique<Subscriber>(cluster.topology(), std::move(callback));
}

}  // namespace routing_replay::server
