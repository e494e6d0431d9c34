#!/usr/bin/env bash
# Try Névé on this machine: a kind cluster, KubeRay, the image, a table and its compaction. All of it is deleted again.
#
#   k8s/trial.sh              a quarter of an hour, most of it for downloads
#   k8s/trial.sh --keep       leave the cluster
#   k8s/trial.sh --dry-run    print the commands and run none
#
# The steps are those of k8s/README.md. Your kubeconfig and your helm repositories stay as they are.
set -euo pipefail

cluster=neve-trial
kuberay=1.7.0
# What the pods of the overlay request, and some for Kubernetes itself.
memory_gb=14
cpus=4
days=8

cd "$(dirname "${BASH_SOURCE[0]}")/.."
keep=no
dry_run=no
created=no

fail() {
    echo "trial.sh: $1" >&2
    exit 1
}

usage() {
    sed -n -e '1d' -e '/^#/!q' -e 's/^# \{0,1\}//p' k8s/trial.sh
}

for word in "$@"; do
    case $word in
    --keep) keep=yes ;;
    --dry-run) dry_run=yes ;;
    --help | -h) usage && exit ;;
    *) fail "unknown option $word; options are --keep and --dry-run" ;;
    esac
done

image=$(sed -n 's/^ *image: \(neve:.*\)/\1/p' k8s/base/serve.yaml)
build_arguments=()
case $(uname -m) in
arm64 | aarch64)
    # The head of the Dockerfile names the base image for arm64.
    build_arguments=(--build-arg "$(sed -n 's/^#   --build-arg \(RAY_IMAGE=.*\)/\1/p' k8s/image/Dockerfile)")
    ;;
esac

# ---------------------------------------------------------------------------- Commands

show() {
    local word line='$'
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./:=,@%+-]*) line="$line '$word'" ;;
        *) line="$line $word" ;;
        esac
    done
    printf '%s\n' "$line"
}

# Print a command, and run it.
run() {
    show "$@"
    [ "$dry_run" = yes ] || "$@"
}

title() {
    printf '\n# %s\n' "$1"
}

# The pod of the gateway has the command line and the token, so this machine needs no Python.
in_pod=(kubectl -n neve exec service/neve-gateway -c ray-worker --)
client=(env COLUMNS=100 NEVE_URL=http://127.0.0.1:8642 NEVE_TOKEN_FILE=/etc/neve/secrets/gateway/token neve)
neve() {
    show neve "$@"
    [ "$dry_run" = yes ] || "${in_pod[@]}" "${client[@]}" "$@"
}

# ---------------------------------------------------------------------------- What is needed

need() {
    command -v "$1" >/dev/null 2>&1 || missing+=("  $1: $2")
}

check_machine() {
    local missing=() given
    need docker 'https://docs.docker.com/get-started/get-docker'
    need kind 'https://kind.sigs.k8s.io/docs/user/quick-start#installation'
    need kubectl 'https://kubernetes.io/docs/tasks/tools'
    need helm 'https://helm.sh/docs/intro/install'
    need openssl 'the package openssl of your system'
    if [ ${#missing[@]} -gt 0 ]; then
        fail "the trial needs programs that are not installed; install them and run it again:
$(printf '%s\n' "${missing[@]}")"
    fi
    given=$(docker info --format '{{.NCPU}} {{.MemTotal}}' 2>/dev/null) ||
        fail "docker does not answer; start Docker, or give your user the right to use it, and try \`docker info\`"
    if [ "${given% *}" -lt "$cpus" ] || [ $((${given#* } / 1000000000)) -lt "$memory_gb" ]; then
        fail "Docker has ${given% *} CPUs and $((${given#* } / 1000000000)) GB of memory, the trial needs $cpus and \
$memory_gb; give it more in the settings of Docker Desktop, or use a larger machine"
    fi
    if kind get clusters 2>/dev/null | grep -qx "$cluster"; then
        fail "the cluster $cluster is there already; delete it with \`kind delete cluster --name $cluster\`"
    fi
}

# ---------------------------------------------------------------------------- The end

describe() {
    title "It failed. Pods, events and log of \`neve serve\`:"
    kubectl get pods --all-namespaces
    kubectl -n neve get events --sort-by=.lastTimestamp | tail -n 20
    kubectl -n neve logs deployment/neve-serve --tail=30
}

end() {
    local status=$?
    trap - EXIT
    set +e
    if [ "$created" = yes ]; then
        [ "$status" -eq 0 ] || describe
        if [ "$keep" = yes ]; then
            title "The cluster stays"
            echo "To use it:    kind export kubeconfig --name $cluster"
            echo "To delete it: kind delete cluster --name $cluster"
        else
            title "Delete the cluster"
            run kind delete cluster --name "$cluster"
        fi
    fi
    [ "$dry_run" = yes ] || rm -rf "$work"
    exit "$status"
}

# ---------------------------------------------------------------------------- Steps

create_cluster() {
    title "A cluster with KubeRay"
    created=yes
    run kind create cluster --name "$cluster" --wait 5m
    run helm install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm/ \
        --version "$kuberay" --namespace kuberay --create-namespace --wait --timeout 10m
}

load_image() {
    title "The image"
    # An empty array is an error in the bash of macOS.
    run docker build -f k8s/image/Dockerfile -t "$image" ${build_arguments[@]+"${build_arguments[@]}"} .
    run kind load docker-image "$image" --name "$cluster"
}

# Secrets go through files that only you can read: command lines are visible to all users.
write_secrets() {
    local password
    password=$(openssl rand -hex 32)
    {
        echo "password=$(openssl rand -hex 32)"
        echo "service_password=$password"
        echo "url=redis://neve:$password@neve-redis:6379/0"
    } >"$work/neve-store"
    echo "token=$(openssl rand -hex 32)" >"$work/neve-gateway"
    echo "auth_token=$(openssl rand -hex 32)" >"$work/neve-ray"
    echo "password=$(openssl rand -hex 32)" >"$work/ray-redis"
}

create_secrets() {
    local name
    title "Secrets"
    [ "$dry_run" = yes ] || write_secrets
    run kubectl apply -f k8s/base/namespace.yaml
    for name in neve-store neve-gateway neve-ray ray-redis; do
        run kubectl -n neve create secret generic "$name" --from-env-file="$work/$name"
    done
}

install_neve() {
    title "Névé"
    run kubectl apply -k k8s/overlays/laptop
    run kubectl -n neve rollout status statefulset/neve-redis --timeout=10m
    run kubectl -n neve rollout status deployment/neve-serve --timeout=15m
    run kubectl -n neve get pods
    echo "\$ neve() { ${in_pod[*]} ${client[*]} \"\$@\"; }"
    neve status
}

fill_table() {
    local day rows
    title "A table of $days files; each has the same 100 ids, in a newer version"
    neve table create users --location /data/users --schema id:int64,at:int64,name:string --key id --version at --paused
    # shellcheck disable=SC2016  # the shell in the pod expands it
    rows='{ echo id,at,name; for id in $(seq 100); do echo $id,$day,name-$id-of-day-$day; done; } > /tmp/day-$day.csv'
    run "${in_pod[@]}" sh -c "for day in \$(seq $days); do $rows; done"
    for day in $(seq "$days"); do
        neve append users "/tmp/day-$day.csv"
    done
    title "Before the compaction"
    neve table files users
}

compact_table() {
    title "The compaction; its compactor is a pod that Ray's autoscaler requests"
    neve resume users
    neve compact users --wait --timeout 20m
    title "After the compaction"
    neve table files users
    neve history users
    neve scan users --start 7 --end 7
    run kubectl -n neve get pods
}

check_table() {
    local files rows
    [ "$dry_run" = no ] || return 0
    files=$("${in_pod[@]}" "${client[@]}" table files users --json | grep -c '^ *"path":' || true)
    rows=$("${in_pod[@]}" "${client[@]}" scan users --count --json | tr -dc '0-9')
    [ "$files $rows" = "1 100" ] || fail "the table has $files files and $rows rows, expected 1 file with 100 rows"
    title "It works: $days files with $((100 * days)) rows became 1 file with the newest 100"
}

if [ "$dry_run" = yes ]; then
    work=/tmp/neve-trial
else
    check_machine
    work=$(mktemp -d)
    export KUBECONFIG=$work/kubeconfig
fi
trap end EXIT
trap 'exit 130' INT TERM
create_cluster
load_image
create_secrets
install_neve
fill_table
compact_table
check_table
